// RUN: jaxpp-opt %s -p "split-forward{keep=0:24B}" --split-input-file | filecheck %s
// RUN: jaxpp-opt %s -p "split-forward{keep=0:1}" --split-input-file | filecheck %s --check-prefix=BUDGET

// Three layers, from the last to the first. The forward stacks products and their sines for the backward. Products are
// kept, in the stack that is there, and sines made again: the new loop reads row 2 - i, and writes it. No new loop
// carries the limit of the test.

// CHECK-LABEL: func.func public @main(
// CHECK:           %[[F:.*]]:2 = func.call @forward_0(
// CHECK-NEXT:      %[[R:.*]] = func.call @recompute_0(%[[F]]#1)
// CHECK:           func.call @backward_0(%[[F]]#1, %[[R]],
// CHECK-LABEL: func.func private @forward_0(
// CHECK:         %[[L:.*]]:3 = stablehlo.while(
// CHECK:           stablehlo.dot_general
// CHECK:           return %[[L]]#1, %[[L]]#2
// CHECK-LABEL: func.func private @recompute_0(%{{.*}}: tensor<3x2xf32>)
// CHECK:         stablehlo.while(%[[I:[^ ]*]] = %{{[^ ]*}}, %{{[^ ]*}} = %{{[^ ]*}})
// CHECK:           %[[LIMIT:.*]] = stablehlo.constant dense<3> : tensor<i32>
// CHECK-NEXT:      stablehlo.compare LT, %[[I]], %[[LIMIT]]
// CHECK-NOT:       stablehlo.dot_general
// CHECK:           %[[MINUS:.*]] = stablehlo.multiply %{{.*}}, %{{.*}} : tensor<i32>
// CHECK:           %[[ROW:.*]] = stablehlo.add %[[MINUS]], %{{.*}} : tensor<i32>
// CHECK:           stablehlo.dynamic_slice %{{.*}}, %[[ROW]], %{{.*}}, sizes = [1, 2]
// CHECK:           stablehlo.sine
// CHECK:           stablehlo.dynamic_update_slice
// CHECK-NOT:       stablehlo.dynamic_update_slice

// With as many FLOPs as a forward, nothing is kept: the recompute carries the activation through its loop again.

// BUDGET-LABEL: func.func public @main(
// BUDGET:           func.call @forward_0(%[[X:.*]], %[[W:.*]])
// BUDGET-NEXT:      %[[R:.*]]:2 = func.call @recompute_0(%[[X]], %[[W]])
// BUDGET:           func.call @backward_0(%[[R]]#0, %[[R]]#1,
func.func public @main(%w: tensor<3x2x2xf32>, %x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<2xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %zeros) : tensor<i32>, tensor<2xf32>, tensor<2xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0B0 0B1\0Amesh 1: 1F0 1B0 1F1 1B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a:3 = func.call @forward_0(%x, %w) {jaxpp.stage = 0 : i64} : (tensor<2xf32>, tensor<3x2x2xf32>) -> (tensor<2xf32>, tensor<3x2xf32>, tensor<3x2xf32>)
    %d:2 = func.call @backward_1(%a#0, %g1) {jaxpp.stage = 1 : i64} : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    %c = func.call @backward_0(%a#1, %a#2, %d#0, %g0) {jaxpp.stage = 0 : i64} : (tensor<3x2xf32>, tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<2xf32>, tensor<2xf32>
  }
  return %0#1, %0#2 : tensor<2xf32>, tensor<2xf32>
}
func.func private @forward_0(%x: tensor<2xf32>, %w: tensor<3x2x2xf32>) -> (tensor<2xf32>, tensor<3x2xf32>, tensor<3x2xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x2xf32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %0:5 = stablehlo.while(%i = %first, %limit = %three, %h = %x, %products = %zeros, %sines = %zeros) : tensor<i32>, tensor<i32>, tensor<2xf32>, tensor<3x2xf32>, tensor<3x2xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %row = stablehlo.subtract %two, %i : tensor<i32>
    %1 = stablehlo.dynamic_slice %w, %row, %zero, %zero, sizes = [1, 2, 2] : (tensor<3x2x2xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x2xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x2x2xf32>) -> tensor<2x2xf32>
    %3 = stablehlo.dot_general %2, %h, contracting_dims = [1] x [0] : (tensor<2x2xf32>, tensor<2xf32>) -> tensor<2xf32>
    %4 = stablehlo.sine %3 : tensor<2xf32>
    %5 = stablehlo.cosine %4 : tensor<2xf32>
    %6 = stablehlo.broadcast_in_dim %3, dims = [1] : (tensor<2xf32>) -> tensor<1x2xf32>
    %7 = stablehlo.dynamic_update_slice %products, %6, %row, %zero : (tensor<3x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<3x2xf32>
    %8 = stablehlo.broadcast_in_dim %4, dims = [1] : (tensor<2xf32>) -> tensor<1x2xf32>
    %9 = stablehlo.dynamic_update_slice %sines, %8, %row, %zero : (tensor<3x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<3x2xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %limit, %5, %7, %9 : tensor<i32>, tensor<i32>, tensor<2xf32>, tensor<3x2xf32>, tensor<3x2xf32>
  }
  return %0#2, %0#3, %0#4 : tensor<2xf32>, tensor<3x2xf32>, tensor<3x2xf32>
}
func.func private @backward_1(%x: tensor<2xf32>, %g: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.multiply %x, %x : tensor<2xf32>
  %1 = stablehlo.add %0, %g : tensor<2xf32>
  return %0, %1 : tensor<2xf32>, tensor<2xf32>
}
func.func private @backward_0(%p: tensor<3x2xf32>, %s: tensor<3x2xf32>, %d: tensor<2xf32>, %g: tensor<2xf32>) -> tensor<2xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.multiply %p, %s : tensor<3x2xf32>
  %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<3x2xf32>, tensor<f32>) -> tensor<2xf32>
  %2 = stablehlo.multiply %1, %d : tensor<2xf32>
  %3 = stablehlo.add %2, %g : tensor<2xf32>
  return %3 : tensor<2xf32>
}
