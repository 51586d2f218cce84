// RUN: not jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2},number-stages" 2>&1 | filecheck %s

// A token over a mark.

// CHECK: arrays_invalid.mlir:[[# @LINE + 4]]:9: error: a value of type !stablehlo.token goes over a stage mark
// CHECK-NEXT: what stages hand on is an array of a fixed shape, such as tensor<4x3xf32>; for an ordered callback's token: ordered=False
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %t0 = stablehlo.create_token : !stablehlo.token
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m0 = stablehlo.sine %h : tensor<f32>
    %m1, %m2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m0, %t0 : tensor<f32>, !stablehlo.token
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %m1 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A dynamic shape over a mark.

// CHECK: arrays_invalid.mlir:[[# @LINE + 14]]:10: error: a dynamic shape of type tensor<?xf32> goes over a stage mark
// CHECK-NEXT: what stages hand on is an array of a fixed shape, such as tensor<4x3xf32>
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %t0 = stablehlo.create_token : !stablehlo.token
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m0 = stablehlo.sine %h : tensor<f32>
    %r = stablehlo.reshape %m0 : (tensor<f32>) -> tensor<1xf32>
    %shape = stablehlo.constant dense<1> : tensor<1xi32>
    %d = stablehlo.dynamic_reshape %r, %shape : (tensor<1xf32>, tensor<1xi32>) -> tensor<?xf32>
    %m2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %d : tensor<?xf32>
    %s = stablehlo.dynamic_reshape %m2, %shape : (tensor<?xf32>, tensor<1xi32>) -> tensor<1xf32>
    %m1 = stablehlo.reshape %s : (tensor<1xf32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %m1 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
