// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals,outline-stages,unroll-microbatches,infer-placement,insert-transfers,plan-buffers | filecheck %s

// In the step of a GPT the residuals of a microbatch die in its backward, with the gradients received; neither the batch
// nor the index nor a weight does, until the optimizer: the donated weights die in the update, which writes over them.
// The backward adds to its sums in place, and the optimizer updates the moments in place.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK:         %[[F:.*]]:14 = call @forward_0({{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64
// CHECK-NEXT:    "stablehlo.send"(%[[F]]#13, {{.*}} {jaxpp.last_use = array<i64: 0>}
// CHECK:         call @backward_0(%{{[^,]*}}, %{{[^,]*}}, %[[F]]#1, %[[F]]#0, {{.*}}) {jaxpp.last_use = array<i64: 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 15, 16, 17, 19, 20, 21, 22, 23, 24, 25, 26>
// CHECK:         call @after_0_level_3({{.*}}) {jaxpp.last_use = array<i64: 0, 1, 2, {{.*}} 24, 25, 26>
// CHECK-LABEL: func.func public @mesh_1(
// CHECK:         %[[X:.*]]:2 = "stablehlo.recv"
// CHECK-NEXT:    call @forward_1(%[[X]]#0, {{.*}}) {jaxpp.last_use = array<i64: 0>,
// CHECK-LABEL: func.func private @forward_0(
// CHECK-NOT:       tf.aliasing_output
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %{{[^:]*}}: tensor<2x4x8xf32> {tf.aliasing_output = 0 : i32}, %{{[^:]*}}: tensor<8x3x2x4xf32>, {{.*}} -> (
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      : tensor<4xf32> {tf.aliasing_output = 2 : i32}, {{.*}}: tensor<16x8xf32> {tf.aliasing_output = 3 : i32}, {{.*}}: tensor<2x4x8xf32> {tf.aliasing_output = 4 : i32}, {{.*}}: tensor<8x3x2x4xf32> {tf.aliasing_output = 5 : i32}, {{.*}}: tensor<8x16xf32> {tf.aliasing_output = 6 : i32}) -> (
// CHECK-LABEL: func.func private @after_1_level_2(
// CHECK-SAME:      : tensor<16x8xf32> {tf.aliasing_output = 0 : i32}, {{.*}}: tensor<2x4x8xf32> {tf.aliasing_output = 1 : i32}, {{.*}}: tensor<8x3x2x4xf32> {tf.aliasing_output = 2 : i32}, {{.*}}: tensor<8x16xf32> {tf.aliasing_output = 3 : i32}, %{{[^:]*}}: tensor<i32>) -> (
