// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals | filecheck %s

// The step of a GPT with two stages. The backward of stage 0 broadcasts the scale of a norm again, and multiplies by it
// again: one number is kept for each token, not eight.

// CHECK:         stablehlo.while(
// CHECK:           %[[S:.*]] = stablehlo.rsqrt %{{.*}} {jaxpp.task = "forward_0"} : tensor<2x4x1xf32>
// CHECK:           %[[B:.*]] = stablehlo.broadcast_in_dim %[[S]], dims = [0, 1, 2] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[AGAIN:.*]] = stablehlo.broadcast_in_dim %[[S]], dims = [0, 1, 2] {jaxpp.task = "backward_0"}
// CHECK-NEXT:      %{{.*}} = stablehlo.multiply %[[X:.*]], %[[B]] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %{{.*}} = stablehlo.multiply %[[X]], %[[AGAIN]] {jaxpp.task = "backward_0"}
