// RUN: jaxpp-opt %s -p find-microbatch-loop,unroll-loops,number-stages,assign-stages,split-caches | filecheck %s

// An operation of stage 1 reads two arrays that stage 0 writes: it gets both from their rows, and neither array crosses.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while({{.*}} = %[[K1:[^ ,]*]], {{[^ ]*}} = %[[V1:[^ ,]*]]) :
// CHECK:           %[[X:.*]] = stablehlo.reshape %{{.*}} {jaxpp.slice = 0
// CHECK:           %[[TWICE:.*]] = stablehlo.add %[[X]], %[[X]] {jaxpp.slice = 0
// CHECK:           stablehlo.optimization_barrier {{.*}}jaxpp.task = "forward_1"}
// CHECK-NEXT:      %[[K:.*]] = stablehlo.concatenate %{{.*}}, %[[K1]], dim = 0
// CHECK-NEXT:      %[[KEYS:.*]] = stablehlo.dynamic_update_slice %[[K]], %[[X]], {{.*}}jaxpp.task = "forward_1"}
// CHECK-NEXT:      %[[V:.*]] = stablehlo.concatenate %{{.*}}, %[[V1]], dim = 0
// CHECK-NEXT:      %[[VALUES:.*]] = stablehlo.dynamic_update_slice %[[V]], %[[TWICE]], {{.*}}jaxpp.task = "forward_1"}
// CHECK-NEXT:      stablehlo.multiply %[[KEYS]], %[[VALUES]] {{.*}}jaxpp.task = "forward_1"}
func.func public @main(%xs: tensor<2x4xf32>) -> tensor<f32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %c0, %sum = %none) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: two slices\0Aplacement: 0 1\0Amesh 0: 0F0 0F0.1 0F1 0F1.1 .\0Amesh 1: . 1F0 1F0.1 1F1 1F1.1"}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %zeros = stablehlo.constant dense<0.0> : tensor<2xf32>
    %nothing = stablehlo.constant dense<0.0> : tensor<f32>
    %1:4 = stablehlo.while(%k = %zero, %keys = %zeros, %values = %zeros, %total = %nothing) : tensor<i32>, tensor<2xf32>, tensor<2xf32>, tensor<f32>
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %2 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.dynamic_slice %xs, %i, %k, sizes = [1, 1] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x1xf32>
      %x = stablehlo.reshape %2 : (tensor<1x1xf32>) -> tensor<1xf32>
      %twice = stablehlo.add %x, %x : tensor<1xf32>
      %k1 = stablehlo.dynamic_update_slice %keys, %x, %k : (tensor<2xf32>, tensor<1xf32>, tensor<i32>) -> tensor<2xf32>
      %v1 = stablehlo.dynamic_update_slice %values, %twice, %k : (tensor<2xf32>, tensor<1xf32>, tensor<i32>) -> tensor<2xf32>
      %both = stablehlo.subtract %k1, %v1 : tensor<2xf32>
      %y = stablehlo.reduce(%both init: %none) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
      %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %y : tensor<f32>
      %product = stablehlo.multiply %k1, %v1 : tensor<2xf32>
      %z = stablehlo.reduce(%product init: %none) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
      %w = stablehlo.multiply %4, %z : tensor<f32>
      %6 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %w : tensor<f32>
      %5 = stablehlo.add %total, %6 : tensor<f32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %k1, %v1, %5 : tensor<i32>, tensor<2xf32>, tensor<2xf32>, tensor<f32>
    }
    %6 = stablehlo.add %1#3, %none : tensor<f32>
    %7 = stablehlo.add %i, %one : tensor<i32>
    %8 = stablehlo.add %sum, %6 : tensor<f32>
    stablehlo.return %7, %8 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
