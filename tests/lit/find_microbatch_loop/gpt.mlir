// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop | filecheck %s

// In the step of a GPT the loop carries ten weights, the batch, the index, the losses and ten sums of gradients. The
// weights and the batch are not changed and go: the body uses the arguments of @main. The others stay, the index first.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[EMBED:[^:]*]]: tensor<16x8xf32> {jax.buffer_donor = true}, %[[POSITION:[^:]*]]: tensor<4x8xf32>
// CHECK-SAME:      %[[BATCH:[^:]*]]: tensor<4x2x5xi32>)
// CHECK:         %[[LOOP:[^:]*]]:12 = stablehlo.while(%[[I:[^ ]*]] = %{{[^ ]*}}, %[[LOSSES:[^ ]*]] = %{{[^ ]*}},
// CHECK-SAME:        : tensor<i32>, tensor<4xf32>, tensor<
// CHECK-SAME:        indices = array<i64: 0>, length = 4 : i64, schedule = "schedule: 1f1b\0Aplacement: 0 1\0Amesh 0: 0F0 0F1
// CHECK-SAME:        stages = 2 : i64, starts = array<i64: 0>, steps = array<i64: 1>}
// CHECK:         do {
// CHECK:           stablehlo.dynamic_slice %[[BATCH]],
// CHECK:           "stablehlo.gather"(%[[EMBED]],
