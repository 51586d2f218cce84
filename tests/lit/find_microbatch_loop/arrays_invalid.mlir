// RUN: not jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2}" 2>&1 | filecheck %s

// A token from one microbatch to the next.

// CHECK: arrays_invalid.mlir:[[# @LINE + 4]]:9: error: a value of type !stablehlo.token is carried by the microbatch loop
// CHECK-NEXT: what stages hand on is an array of a fixed shape, such as tensor<4x3xf32>; for an ordered callback's token: ordered=False
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %t0 = stablehlo.create_token : !stablehlo.token
  %0:3 = stablehlo.while(%i = %first, %h = %x, %t = %t0) : tensor<i32>, tensor<f32>, !stablehlo.token
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m0 = stablehlo.sine %h : tensor<f32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m0 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %m1, %t : tensor<i32>, tensor<f32>, !stablehlo.token
  }
  return %0#1 : tensor<f32>
}
