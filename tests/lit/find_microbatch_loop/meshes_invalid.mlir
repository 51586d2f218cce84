// RUN: not jaxpp-opt %s -p "find-microbatch-loop{schedule=1f1b meshes=100000}" 2>&1 | filecheck %s

// More meshes than anybody has: the schedule is not even made.

// CHECK: meshes_invalid.mlir:[[# @LINE + 4]]:10: error: found 1 stage mark, a schedule for 100000 meshes has at least as many stages
// CHECK-NEXT: give fewer meshes
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %y : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
