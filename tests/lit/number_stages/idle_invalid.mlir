// RUN: not jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2},number-stages" 2>&1 | filecheck %s

// Nobody uses what the first mark returns: the stage would have no end.

// CHECK: idle_invalid.mlir:[[# @LINE + 11]]:11: error: nobody uses the result of this stage mark
// CHECK-NEXT: go on with what the mark returns: x = jaxpp.mark_stage_end(x)
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m0 = stablehlo.sine %h : tensor<f32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m0 : tensor<f32>
    %m2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %m0 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %m2 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// JAX dropped a mark, and says where it stood.

// CHECK: train.py:12:4: error: nobody uses the result of this stage mark
module attributes {jaxpp.lost_marks = ["train.py:12:4"]} {
  func.func public @main(%x: tensor<f32>) -> tensor<f32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%i = %first, %h = %x) : tensor<i32>, tensor<f32>
        attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
    cond {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %m0 = stablehlo.sine %h : tensor<f32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %m0 : tensor<i32>, tensor<f32>
    }
    return %0#1 : tensor<f32>
  }
}

// -----

// A mark of what is the same for all microbatches.

// CHECK: idle_invalid.mlir:[[# @LINE + 11]]:11: error: the mark of stage 0 marks what is the same for all microbatches
// CHECK-NEXT: mark what the stage computes of its microbatch
func.func public @main(%x: tensor<3xf32>, %w: tensor<1xf32>) -> tensor<1xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<1xf32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %w : tensor<1xf32>
    %h = stablehlo.dynamic_slice %x, %i, sizes = [1] : (tensor<3xf32>, tensor<i32>) -> tensor<1xf32>
    %y = stablehlo.multiply %h, %m0 : tensor<1xf32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %y : tensor<1xf32>
    %next_sum = stablehlo.add %sum, %m1 : tensor<1xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %next_sum : tensor<i32>, tensor<1xf32>
  }
  return %0#1 : tensor<1xf32>
}
