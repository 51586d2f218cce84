// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,split-accumulators | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt.mlir --pipeline mpmd | filecheck %s --check-prefix=PROGRAM

// In the step of a GPT the embedding is tied to the head, in stage 1: the transposed gradient of that one is added before
// the scattered one of stage 0.

// CHECK:         %[[LOOP:.*]]:12 = stablehlo.while({{.*}} %[[SUM:[^ ]*]] = %{{[^ ]*}}, %{{[^ ]*}} = %{{[^ ]*}}) :
// CHECK:           %[[HEAD:.*]] = stablehlo.transpose %{{.*}} {jaxpp.task = "backward_1"} : (tensor<8x16xf32>) -> tensor<16x8xf32>
// CHECK:           phase = "backward", stage = 0
// CHECK:           %[[EMBED:.*]] = "stablehlo.scatter"
// CHECK:           %[[S:.*]] = stablehlo.add %[[SUM]], %[[HEAD]] {jaxpp.task = "backward_1"} : tensor<16x8xf32>
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S]], %[[EMBED]] {jaxpp.task = "backward_0"} : tensor<16x8xf32>
// CHECK-NEXT:      stablehlo.return {{.*}} %[[R]], %{{[^ ]*}} :

// Of the program: once the sum over the microbatches comes from mesh 1, once the new embedding goes back to it.

// PROGRAM-LABEL: func.func public @mesh_0(
// PROGRAM-NOT:     "stablehlo.send"({{.*}} (tensor<16x8xf32>
// PROGRAM:         call @after_0_level_3
// PROGRAM-NEXT:    "stablehlo.send"({{.*}} (tensor<16x8xf32>
// PROGRAM-LABEL: func.func public @mesh_1(
// PROGRAM-NOT:     "stablehlo.send"({{.*}} (tensor<16x8xf32>
// PROGRAM:         call @backward_1({{.*}} jaxpp.microbatch = 3
// PROGRAM:         "stablehlo.send"({{.*}} (tensor<16x8xf32>
// PROGRAM-NOT:     "stablehlo.send"({{.*}} (tensor<16x8xf32>
// PROGRAM:         return
