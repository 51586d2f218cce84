// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages | filecheck %s

// The step of a GPT with two stages, a mark after each. The embedding belongs to the first forward, the loss to the last
// backward, with the head that it is computed of; its gradient's scatter to the backward of stage 0. The masks of the
// attention belong to no task.

// CHECK:         stablehlo.while(
// CHECK:           "stablehlo.gather"({{.*}}jaxpp.task = "forward_0"
// CHECK:           stablehlo.compare GE, {{.*}} : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
// CHECK:           phase = "forward", stage = 0 : i64}, jaxpp.task = "forward_1"}
// CHECK:           phase = "forward", stage = 1 : i64}, jaxpp.task = "forward_1"}
// CHECK:           stablehlo.log %{{.*}} {jaxpp.task = "backward_1"}
// CHECK:           phase = "backward", stage = 1 : i64}, jaxpp.task = "backward_1"}
// CHECK:           phase = "backward", stage = 0 : i64}, jaxpp.task = "backward_0"}
// CHECK:           "stablehlo.scatter"(
// CHECK:           }) {jaxpp.task = "backward_0"}
