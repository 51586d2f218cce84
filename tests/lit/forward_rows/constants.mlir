// RUN: jaxpp-opt %s --split-input-file -p forward-rows | filecheck %s

// Equal constants are there once. One of another type, or of another value, stays.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32>)
// CHECK-NEXT:    %[[ONE:.*]] = stablehlo.constant dense<1.000000e+00> : tensor<f32>
// CHECK-NEXT:    %[[A:.*]] = stablehlo.add %[[X]], %[[ONE]] : tensor<f32>
// CHECK-NEXT:    %[[TWO:.*]] = stablehlo.constant dense<2.000000e+00> : tensor<f32>
// CHECK-NEXT:    %[[B:.*]] = stablehlo.multiply %[[A]], %[[TWO]] : tensor<f32>
// CHECK-NEXT:    %[[C:.*]] = stablehlo.add %[[B]], %[[ONE]] : tensor<f32>
// CHECK-NEXT:    return %[[C]] : tensor<f32>
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.constant dense<1.0> : tensor<f32>
  %1 = stablehlo.add %x, %0 : tensor<f32>
  %2 = stablehlo.constant dense<2.0> : tensor<f32>
  %3 = stablehlo.multiply %1, %2 : tensor<f32>
  %4 = stablehlo.constant dense<1.0> : tensor<f32>
  %5 = stablehlo.add %3, %4 : tensor<f32>
  return %5 : tensor<f32>
}

// -----

// So are broadcasts of equal constants to one shape. What is computed of arguments is computed as often as before: the
// user may want it so, to keep nothing in memory.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<4xf32>)
// CHECK:         %[[ONE:.*]] = stablehlo.constant dense<1.000000e+00> : tensor<f32>
// CHECK-NEXT:    %[[ONES:.*]] = stablehlo.broadcast_in_dim %[[ONE]], dims = [] : (tensor<f32>) -> tensor<4xf32>
// CHECK-NEXT:    %[[S:.*]] = stablehlo.sine %[[X]] : tensor<4xf32>
// CHECK-NEXT:    %[[A:.*]] = stablehlo.add %[[S]], %[[ONES]] : tensor<4xf32>
// CHECK-NEXT:    %[[T:.*]] = stablehlo.sine %[[X]] : tensor<4xf32>
// CHECK-NEXT:    %[[B:.*]] = stablehlo.multiply %[[T]], %[[ONES]] : tensor<4xf32>
// CHECK-NEXT:    return %[[A]], %[[B]] : tensor<4xf32>, tensor<4xf32>
func.func public @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.constant dense<1.0> : tensor<f32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %2 = stablehlo.sine %x : tensor<4xf32>
  %3 = stablehlo.add %2, %1 : tensor<4xf32>
  %4 = stablehlo.constant dense<1.0> : tensor<f32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %6 = stablehlo.sine %x : tensor<4xf32>
  %7 = stablehlo.multiply %6, %5 : tensor<4xf32>
  return %3, %7 : tensor<4xf32>, tensor<4xf32>
}

// -----

// A broadcast of a scalar that is computed stays where it is used: to send the scalar to another stage takes fewer bytes.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32>)
// CHECK:         %[[S:.*]] = stablehlo.sine %[[X]] : tensor<f32>
// CHECK-NEXT:    %[[A:.*]] = stablehlo.broadcast_in_dim %[[S]], dims = [] : (tensor<f32>) -> tensor<4xf32>
// CHECK-NEXT:    %[[B:.*]] = stablehlo.broadcast_in_dim %[[S]], dims = [] : (tensor<f32>) -> tensor<4xf32>
// CHECK-NEXT:    return %[[A]], %[[B]] : tensor<4xf32>, tensor<4xf32>
func.func public @main(%x: tensor<f32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.sine %x : tensor<f32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4xf32>
  return %1, %2 : tensor<4xf32>, tensor<4xf32>
}

// -----

// The body of a loop has constants of its own. A constant with an attribute of its own stays, as does a complex one
// of another sign.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<f32>)
// CHECK:         %[[C:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK-NEXT:    %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %[[C]], %[[H:.*]] = %[[X]])
// CHECK:         do {
// CHECK-NEXT:      %[[ONE:.*]] = stablehlo.constant dense<1> : tensor<i32>
// CHECK-NEXT:      %[[J:.*]] = stablehlo.add %[[I]], %[[ONE]] : tensor<i32>
// CHECK-NEXT:      %[[K:.*]] = stablehlo.add %[[J]], %[[ONE]] : tensor<i32>
// CHECK:         %[[APART:.*]] = stablehlo.constant {jaxpp.apart = 0 : i64} dense<0> : tensor<i32>
// CHECK-NEXT:    %[[PLUS:.*]] = stablehlo.constant dense<(1.000000e+00,0.000000e+00)> : tensor<complex<f32>>
// CHECK-NEXT:    %[[MINUS:.*]] = stablehlo.constant dense<(1.000000e+00,-0.000000e+00)> : tensor<complex<f32>>
// CHECK-NEXT:    return %[[LOOP]]#1, %[[APART]], %[[PLUS]], %[[PLUS]], %[[MINUS]]
func.func public @main(%x: tensor<f32>) -> (tensor<f32>, tensor<i32>, tensor<complex<f32>>, tensor<complex<f32>>, tensor<complex<f32>>) {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<4> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.add %i, %1 : tensor<i32>
    %3 = stablehlo.constant dense<1> : tensor<i32>
    %4 = stablehlo.add %2, %3 : tensor<i32>
    stablehlo.return %4, %h : tensor<i32>, tensor<f32>
  }
  %5 = stablehlo.constant {jaxpp.apart = 0 : i64} dense<0> : tensor<i32>
  %6 = stablehlo.constant dense<(1.0, 0.0)> : tensor<complex<f32>>
  %7 = stablehlo.constant dense<(1.0, 0.0)> : tensor<complex<f32>>
  %8 = stablehlo.constant dense<(1.0, -0.0)> : tensor<complex<f32>>
  return %0#1, %5, %6, %7, %8 : tensor<f32>, tensor<i32>, tensor<complex<f32>>, tensor<complex<f32>>, tensor<complex<f32>>
}
