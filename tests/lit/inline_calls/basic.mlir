// RUN: jaxpp-opt %s --split-input-file -p inline-calls | filecheck %s

// Each call becomes the body of its callee. Nobody needs the callee any more, and it goes.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<4x4xf32>, %[[X:.*]]: tensor<2x4xf32>)
// CHECK-NEXT:    %[[Y:.*]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [0]
// CHECK-NEXT:    %[[Z:.*]] = stablehlo.tanh %[[Y]] : tensor<2x4xf32>
// CHECK-NEXT:    return %[[Z]] : tensor<2x4xf32>
// CHECK-NEXT:  }
// CHECK-NOT:   @layer
func.func public @main(%w: tensor<4x4xf32>, %x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %0 = call @layer(%w, %x) : (tensor<4x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}
func.func private @layer(%w: tensor<4x4xf32>, %x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
  %1 = stablehlo.tanh %0 : tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// -----

// A layer that is called twice has two bodies afterwards, with what it calls itself. Its stage marks, which were
// traced once, now stand at the top of the body of the loop, where the next pass numbers them.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32>, %[[LIMIT:.*]]: tensor<i32>)
// CHECK:         stablehlo.while(%[[I:.*]] = %{{.*}}, %[[H0:.*]] = %[[X]])
// CHECK:         do {
// CHECK-NEXT:      %[[S0:.*]] = stablehlo.sine %[[H0]] : tensor<f32>
// CHECK-NEXT:      %[[T0:.*]] = stablehlo.tanh %[[S0]] : tensor<f32>
// CHECK-NEXT:      %[[H1:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{{.*}}}} %[[T0]] : tensor<f32>
// CHECK-NEXT:      %[[S1:.*]] = stablehlo.sine %[[H1]] : tensor<f32>
// CHECK-NEXT:      %[[T1:.*]] = stablehlo.tanh %[[S1]] : tensor<f32>
// CHECK-NEXT:      %[[H2:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{{.*}}}} %[[T1]] : tensor<f32>
// CHECK:           stablehlo.return %{{.*}}, %[[H2]] : tensor<i32>, tensor<f32>
// CHECK-NOT:   func.func
// CHECK-NOT:   call
func.func public @main(%x: tensor<f32>, %limit: tensor<i32>) -> tensor<f32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = func.call @marked_layer(%h) : (tensor<f32>) -> tensor<f32>
    %2 = func.call @marked_layer(%1) : (tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %3 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %3, %2 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @marked_layer(%h: tensor<f32>) -> tensor<f32> {
  %0 = call @activation(%h) : (tensor<f32>) -> tensor<f32>
  %1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %0 : tensor<f32>
  return %1 : tensor<f32>
}
func.func private @activation(%h: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.sine %h : tensor<f32>
  %1 = stablehlo.tanh %0 : tensor<f32>
  return %1 : tensor<f32>
}

// -----

// A function that hands its arguments on, or returns one value twice, leaves no trace.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-NEXT:    %[[C:.*]] = stablehlo.negate %[[A]] : tensor<f32>
// CHECK-NEXT:    return %[[B]], %[[C]], %[[C]], %[[A]] : tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>
func.func public @main(%a: tensor<f32>, %b: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) {
  %0:2 = call @swap(%a, %b) : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  %1:2 = call @twice(%0#1) : (tensor<f32>) -> (tensor<f32>, tensor<f32>)
  call @nothing() : () -> ()
  return %0#0, %1#0, %1#1, %0#1 : tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>
}
func.func private @swap(%a: tensor<f32>, %b: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  return %b, %a : tensor<f32>, tensor<f32>
}
func.func private @twice(%a: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %0 = stablehlo.negate %a : tensor<f32>
  return %0, %0 : tensor<f32>, tensor<f32>
}
func.func private @nothing() {
  return
}

// -----

// A function that an operation other than a call refers to stays, and so does what that one calls.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32>)
// CHECK-NEXT:    %[[Y:.*]] = stablehlo.composite "my.op" %[[X]] {decomposition = @decomposed}
// CHECK-NEXT:    return %[[Y]] : tensor<f32>
// CHECK-LABEL: func.func private @decomposed(
// CHECK:         call @helper
// CHECK-LABEL: func.func private @helper(
// CHECK-NOT:   @unused
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.composite "my.op" %x {decomposition = @decomposed} : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @decomposed(%x: tensor<f32>) -> tensor<f32> {
  %0 = call @helper(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
func.func private @helper(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @unused(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// What changes nothing goes: the sum starts from one of Python's numbers, which JAX casts to its own type in each trip.
// A transposition of a square matrix, a reshape to another shape and a cast to another type stay.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[S:.*]]: tensor<4x4xf32>, %[[G:.*]]: tensor<4x4xf32>)
// CHECK-NEXT:    %[[SUM:.*]] = stablehlo.add %[[S]], %[[G]]
// CHECK-NEXT:    %[[T:.*]] = stablehlo.transpose %[[SUM]], dims = [1, 0]
// CHECK-NEXT:    %[[B:.*]] = stablehlo.broadcast_in_dim %[[T]], dims = [1, 0]
// CHECK-NEXT:    %[[C:.*]] = stablehlo.convert %[[B]] : (tensor<4x4xf32>) -> tensor<4x4xbf16>
// CHECK-NEXT:    %[[R:.*]] = stablehlo.reshape %[[C]]
// CHECK-NEXT:    return %[[R]]
func.func public @main(%s: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<16xbf16> {
  %0 = stablehlo.convert %s : tensor<4x4xf32>
  %1 = stablehlo.add %0, %g : tensor<4x4xf32>
  %2 = stablehlo.transpose %1, dims = [0, 1] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = stablehlo.reshape %3 : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %6 = stablehlo.broadcast_in_dim %5, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %7 = stablehlo.convert %6 : (tensor<4x4xf32>) -> tensor<4x4xbf16>
  %8 = stablehlo.reshape %7 : (tensor<4x4xbf16>) -> tensor<16xbf16>
  return %8 : tensor<16xbf16>
}
