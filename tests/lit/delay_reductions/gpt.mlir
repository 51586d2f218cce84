// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir -p inline-calls,find-microbatch-loop,assign-stages,split-accumulators,propagate-shardings,delay-reductions | filecheck %s

// A GPT with its batch on two devices per stage: the ten gradients, that of the embedding in two parts (a product and a
// scatter), are each device's own sums until the loop ends. The losses of the microbatches are not summed.

// CHECK:         stablehlo.while({{.*}} tensor<i32>, tensor<4xf32>, tensor<2x16x8xf32>, tensor<2x2x4x8xf32>, {{.*}} tensor<2x16x8xf32>, tensor<2x4x8xf32> attributes
// CHECK:           "stablehlo.scatter"({{.*}} input_batching_dims = [0]
// CHECK-COUNT-10: stablehlo.reduce({{.*}} across dimensions = [0] {sdy.sharding
// CHECK:         return
