// RUN: not jaxpp-opt %s --split-input-file -p assign-stages,place-residuals,outline-stages 2>&1 | filecheck %s

// A token of ordered effects that goes from one stage to the next.

// CHECK: arrays_invalid.mlir:[[# @LINE + 15]]:11: error: a value of type !stablehlo.token leaves @forward_0
// CHECK-NEXT: what stages hand on is an array of a fixed shape, such as tensor<4x3xf32>; for an ordered callback's token: ordered=False
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %t0 = stablehlo.create_token : !stablehlo.token
    %t1 = stablehlo.custom_call @log(%t0, %1) {has_side_effect = true} : (!stablehlo.token, tensor<f32>) -> !stablehlo.token
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %w : tensor<f32>
    %t2 = stablehlo.custom_call @log(%t1, %3) {has_side_effect = true} : (!stablehlo.token, tensor<f32>) -> !stablehlo.token
    %4 = stablehlo.add %sum, %3 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %4 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A dynamic shape, though what is made of it has a fixed one.

// CHECK: arrays_invalid.mlir:[[# @LINE + 16]]:10: error: a dynamic shape of type tensor<?xf32> leaves @forward_0
// CHECK-NEXT: what stages hand on is an array of a fixed shape, such as tensor<4x3xf32>
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %r = stablehlo.reshape %1 : (tensor<f32>) -> tensor<1xf32>
    %shape = stablehlo.constant dense<1> : tensor<1xi32>
    %d = stablehlo.dynamic_reshape %r, %shape : (tensor<1xf32>, tensor<1xi32>) -> tensor<?xf32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %w : tensor<f32>
    %b = stablehlo.dynamic_broadcast_in_dim %3, %shape, dims = [] : (tensor<f32>, tensor<1xi32>) -> tensor<?xf32>
    %c = stablehlo.multiply %d, %b : tensor<?xf32>
    %e = stablehlo.dynamic_reshape %c, %shape : (tensor<?xf32>, tensor<1xi32>) -> tensor<1xf32>
    %f = stablehlo.reshape %e : (tensor<1xf32>) -> tensor<f32>
    %4 = stablehlo.add %sum, %f : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %4 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
