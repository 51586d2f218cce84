// RUN: jaxpp-opt %s --split-input-file -p split-backward | filecheck %s

// A loop over two layers makes the gradient of its input and, added up, that of its weight. Two loops: the first stacks
// the gradient that each layer gets, the second reads it.

// CHECK-LABEL: func.func private @input_grad_1(
// CHECK-SAME:      %[[D:.*]]: tensor<4x4xf32>, %[[W:.*]]: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<2x4x4xf32>)
// CHECK:         %[[I:.*]]:3 = stablehlo.while(%[[K:[^ ]*]] = %{{[^ ]*}}, %[[E:[^ ]*]] = %[[D]], %[[S:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[DX:.*]] = stablehlo.dot_general %[[E]], %[[W]], contracting_dims = [1] x [1]
// CHECK-NOT:       stablehlo.dot_general
// CHECK:           %[[ROW:.*]] = stablehlo.reshape %[[E]] : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
// CHECK:           %[[NEXT:.*]] = stablehlo.dynamic_update_slice %[[S]], %[[ROW]], %[[K]]
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[DX]], %[[NEXT]]
// CHECK:         return %[[I]]#1, %[[I]]#2
// CHECK-LABEL: func.func private @weight_grad_1(
// CHECK-SAME:      %[[S:.*]]: tensor<2x4x4xf32>, %[[X:.*]]: tensor<4x4xf32>, %[[G:.*]]: tensor<4x4xf32>) -> tensor<4x4xf32>
// CHECK:         %[[L:.*]]:2 = stablehlo.while(%[[K:[^ ]*]] = %{{[^ ]*}}, %[[DW:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[ROW:.*]] = stablehlo.dynamic_slice %[[S]], %[[K]]
// CHECK-NEXT:      %[[E:.*]] = stablehlo.reshape %[[ROW]]
// CHECK-NEXT:      %[[DOT:.*]] = stablehlo.dot_general %[[X]], %[[E]], contracting_dims = [0] x [0]
// CHECK-NOT:       stablehlo.dot_general
// CHECK:           stablehlo.add %[[DW]], %[[DOT]]
// CHECK:         stablehlo.add %[[G]], %[[L]]#1
func.func public @main(%w0: tensor<4x4xf32>, %w1: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0I0 0W0 0I1 0W1\0Amesh 1: .   1F0 1I0 1F1 1W0 1I1 1W1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = func.call @forward_1(%a, %w1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %d:2 = func.call @backward_1(%b, %a, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %c = func.call @backward_0(%d#0, %x, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  return %0#1, %0#2 : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @forward_0(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  return %t : tensor<4x4xf32>
}
func.func private @forward_1(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  return %t : tensor<4x4xf32>
}
func.func private @backward_1(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %e = %d, %dw = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.dot_general %x, %e, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %2 = stablehlo.dot_general %e, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %3 = stablehlo.add %dw, %1 : tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %2, %3 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  %s = stablehlo.add %g, %0#2 : tensor<4x4xf32>
  return %0#1, %s : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}

// -----

// The loop counts 3, 5: its stack counts 0, 1. The second loop reads the stack of inputs anew, and the weight, which all
// trips share, not what is behind the barrier of `jax.checkpoint`; the gradients of the weights are stacked.

// CHECK-LABEL: func.func private @input_grad_1(
// CHECK:         stablehlo.while(%[[K:[^ ]*]] = %{{[^ ]*}}, %{{[^ ]*}} = %{{[^ ]*}}, %[[S:[^ ]*]] = %{{[^ ]*}})
// CHECK:           stablehlo.optimization_barrier
// CHECK:           %[[BY_THREE:.*]] = stablehlo.subtract %[[K]], %{{.*}}
// CHECK:           %[[TRIP:.*]] = stablehlo.divide %[[BY_THREE]], %{{.*}}
// CHECK:           stablehlo.dynamic_update_slice %[[S]], %{{[^ ]*}}, %[[TRIP]]
// CHECK-LABEL: func.func private @weight_grad_1(
// CHECK-SAME:      %[[S:.*]]: tensor<2x4x4xf32>, %[[XS:.*]]: tensor<2x4x4xf32>, %[[W:.*]]: tensor<4x4xf32>, %[[G:.*]]: tensor<2x4x4xf32>)
// CHECK:         stablehlo.while(%[[K:[^ ]*]] = %{{[^ ]*}}, %[[DW:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[BY_THREE:.*]] = stablehlo.subtract %[[K]], %{{.*}}
// CHECK:           %[[TRIP:.*]] = stablehlo.divide %[[BY_THREE]], %{{.*}}
// CHECK:           stablehlo.dynamic_slice %[[S]], %[[TRIP]]
// CHECK:           %[[ROW:.*]] = stablehlo.subtract %{{.*}}, %{{.*}}
// CHECK:           stablehlo.dynamic_slice %[[XS]], %[[ROW]]
// CHECK-NOT:       stablehlo.optimization_barrier
// CHECK:           %[[DOT:.*]] = stablehlo.dot_general
// CHECK:           stablehlo.multiply %[[DOT]], %[[W]]
// CHECK:           stablehlo.dynamic_update_slice %[[DW]], %{{[^ ]*}}, %[[ROW]]
func.func public @main(%w0: tensor<4x4xf32>, %ws: tensor<2x4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<2x4x4xf32>) {
  %row = stablehlo.slice %ws [0:1, 0:4, 0:4] : (tensor<2x4x4xf32>) -> tensor<1x4x4xf32>
  %w1 = stablehlo.reshape %row : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %stack = stablehlo.constant dense<0.0> : tensor<2x4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %g0 = %zeros, %g1 = %stack) : tensor<i32>, tensor<4x4xf32>, tensor<2x4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 0I0 0W0 0I1 0W1\0Amesh 1: .   1F0 1I0 1F1 1W0 1I1 1W1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x, %w0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b:2 = func.call @forward_1(%a, %w1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<2x4x4xf32>)
    %d:2 = func.call @backward_1(%b#0, %b#1, %w1, %g1) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<2x4x4xf32>, tensor<4x4xf32>, tensor<2x4x4xf32>) -> (tensor<4x4xf32>, tensor<2x4x4xf32>)
    %c = func.call @backward_0(%d#0, %x, %g0) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %d#1 : tensor<i32>, tensor<4x4xf32>, tensor<2x4x4xf32>
  }
  return %0#1, %0#2 : tensor<4x4xf32>, tensor<2x4x4xf32>
}
func.func private @forward_0(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  return %t : tensor<4x4xf32>
}
func.func private @forward_1(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<2x4x4xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  %xs = stablehlo.broadcast_in_dim %x, dims = [1, 2] : (tensor<4x4xf32>) -> tensor<2x4x4xf32>
  return %t, %xs : tensor<4x4xf32>, tensor<2x4x4xf32>
}
func.func private @backward_1(%d: tensor<4x4xf32>, %xs: tensor<2x4x4xf32>, %w: tensor<4x4xf32>, %g: tensor<2x4x4xf32>) -> (tensor<4x4xf32>, tensor<2x4x4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %first = stablehlo.constant dense<3> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<2x4x4xf32>
  %0:3 = stablehlo.while(%i = %first, %e = %d, %dw = %zeros) : tensor<i32>, tensor<4x4xf32>, tensor<2x4x4xf32>
  cond {
    %limit = stablehlo.constant dense<6> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %two = stablehlo.constant dense<2> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %half = stablehlo.divide %i, %two : tensor<i32>
    %row = stablehlo.subtract %half, %one : tensor<i32>
    %1 = stablehlo.dynamic_slice %xs, %row, %zero, %zero, sizes = [1, 4, 4] : (tensor<2x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<1x4x4xf32>) -> tensor<4x4xf32>
    %3:3 = stablehlo.optimization_barrier %2, %e, %w : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    %4 = stablehlo.dot_general %3#0, %3#2, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %5 = stablehlo.cosine %4 : tensor<4x4xf32>
    %6 = stablehlo.multiply %3#1, %5 : tensor<4x4xf32>
    %7 = stablehlo.dot_general %3#0, %6, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %shared = stablehlo.multiply %7, %3#2 : tensor<4x4xf32>
    %8 = stablehlo.dot_general %6, %3#2, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %9 = stablehlo.reshape %shared : (tensor<4x4xf32>) -> tensor<1x4x4xf32>
    %10 = stablehlo.dynamic_update_slice %dw, %9, %row, %zero, %zero : (tensor<2x4x4xf32>, tensor<1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x4x4xf32>
    %next = stablehlo.add %i, %two : tensor<i32>
    stablehlo.return %next, %8, %10 : tensor<i32>, tensor<4x4xf32>, tensor<2x4x4xf32>
  }
  %s = stablehlo.add %g, %0#2 : tensor<2x4x4xf32>
  return %0#1, %s : tensor<4x4xf32>, tensor<2x4x4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %x: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %dw = stablehlo.dot_general %x, %d, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %dw : tensor<4x4xf32>
  return %s : tensor<4x4xf32>
}
