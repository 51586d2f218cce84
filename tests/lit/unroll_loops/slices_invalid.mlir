// RUN: not jaxpp-opt %s -p find-microbatch-loop,unroll-loops --split-input-file 2>&1 | filecheck %s

// CHECK: error: the schedule two slices has 2 slices, the loop over slices runs 4 times
// CHECK-NEXT:  cut the sequence into 2 slices, or take a schedule of as many as the loop has
func.func public @main(%xs: tensor<2x4xf32>) -> tensor<f32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %c0, %sum = %none) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: two slices\0Aplacement: 0\0Amesh 0: 0F0 0F0.1 0F1 0F1.1"}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %zeros = stablehlo.constant dense<0.0> : tensor<4xf32>
    %nothing = stablehlo.constant dense<0.0> : tensor<f32>
    %1:3 = stablehlo.while(%k = %zero, %kv = %zeros, %total = %nothing) : tensor<i32>, tensor<4xf32>, tensor<f32>
    cond {
      %limit = stablehlo.constant dense<4> : tensor<i32>
      %2 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.dynamic_slice %xs, %i, %k, sizes = [1, 1] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x1xf32>
      %x = stablehlo.reshape %2 : (tensor<1x1xf32>) -> tensor<1xf32>
      %3 = stablehlo.dynamic_update_slice %kv, %x, %k : (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
      %square = stablehlo.multiply %3, %3 : tensor<4xf32>
      %y = stablehlo.reduce(%square init: %none) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
      %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %y : tensor<f32>
      %5 = stablehlo.add %total, %4 : tensor<f32>
      %k1 = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %k1, %3, %5 : tensor<i32>, tensor<4xf32>, tensor<f32>
    }
    %6 = stablehlo.add %1#2, %none : tensor<f32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    %8 = stablehlo.add %sum, %6 : tensor<f32>
    stablehlo.return %7, %8 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// CHECK: error: the schedule two slices has 2 slices, this stage mark is in no loop over slices
// CHECK-NEXT:  scan over the slices of the sequence with the stage marks in the body: jaxpp.models.scan_slices; or take a schedule without slices
func.func public @main(%xs: tensor<2x4xf32>) -> tensor<f32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %c0, %sum = %none) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: two slices\0Aplacement: 0\0Amesh 0: 0F0 0F0.1 0F1 0F1.1"}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.dynamic_slice %xs, %i, %zero, sizes = [1, 4] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
    %3 = stablehlo.reduce(%2 init: %none) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x4xf32>, tensor<f32>) -> tensor<f32>
    %6 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %3 : tensor<f32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    %8 = stablehlo.add %sum, %6 : tensor<f32>
    stablehlo.return %7, %8 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// CHECK: error: the schedule two slices has 2 slices, the loop no stage mark
// CHECK-NEXT:  scan over the slices of the sequence with the stage marks in the body: jaxpp.models.scan_slices
func.func public @main(%xs: tensor<2x4xf32>) -> tensor<f32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %c0, %sum = %none) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: two slices\0Aplacement: 0\0Amesh 0: 0F0 0F0.1 0F1 0F1.1"}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %6 = stablehlo.add %sum, %none : tensor<f32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    %8 = stablehlo.add %sum, %6 : tensor<f32>
    stablehlo.return %7, %8 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
