// RUN: jaxpp-opt %s --split-input-file -p forward-rows | filecheck %s

// A sum of stacks that each microbatch also reads, here its norm, stays whole: one stage has all of it.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}}, %[[OTHER:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[ROWS:.*]] = stablehlo.concatenate
// CHECK-NEXT:      %[[T:.*]] = stablehlo.add %[[SUM]], %[[ROWS]]
// CHECK-NEXT:      %[[NORM:.*]] = stablehlo.reduce(%[[T]] init:
// CHECK:           stablehlo.return %{{.*}}, %[[T]], %[[NORM]]
func.func public @main(%x: tensor<1x4xf32>) -> (tensor<2x4xf32>, tensor<f32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f0, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
  %0:3 = stablehlo.while(%i = %c0, %sum = %zeros, %other = %f0) : tensor<i32>, tensor<2x4xf32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<1x4xf32>
    %rows = stablehlo.concatenate %x, %m, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
    %t = stablehlo.add %sum, %rows : tensor<2x4xf32>
    %n = stablehlo.reduce(%t init: %f0) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t, %n : tensor<i32>, tensor<2x4xf32>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<2x4xf32>, tensor<f32>
}

// -----

// A sum that is handed on twice stays whole too.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}}, %[[OTHER:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[ROWS:.*]] = stablehlo.concatenate
// CHECK-NEXT:      %[[T:.*]] = stablehlo.add %[[SUM]], %[[ROWS]]
// CHECK:           stablehlo.return %{{.*}}, %[[T]], %[[T]]
func.func public @main(%x: tensor<1x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f0, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
  %0:3 = stablehlo.while(%i = %c0, %sum = %zeros, %other = %zeros) : tensor<i32>, tensor<2x4xf32>, tensor<2x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<1x4xf32>
    %rows = stablehlo.concatenate %x, %m, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
    %t = stablehlo.add %sum, %rows : tensor<2x4xf32>
    %u = stablehlo.add %other, %rows : tensor<2x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t, %t : tensor<i32>, tensor<2x4xf32>, tensor<2x4xf32>
  }
  return %0#1, %0#2 : tensor<2x4xf32>, tensor<2x4xf32>
}

// -----

// So does a sum of another sum, which one stage hands on.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}}, %[[OTHER:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[ROWS:.*]] = stablehlo.concatenate
// CHECK-NEXT:      %[[T:.*]] = stablehlo.add %[[SUM]], %[[ROWS]]
// CHECK-NEXT:      %[[U:.*]] = stablehlo.add %[[OTHER]], %[[T]]
// CHECK:           stablehlo.return %{{.*}}, %[[T]], %[[U]]
func.func public @main(%x: tensor<1x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f0, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
  %0:3 = stablehlo.while(%i = %c0, %sum = %zeros, %other = %zeros) : tensor<i32>, tensor<2x4xf32>, tensor<2x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<1x4xf32>
    %rows = stablehlo.concatenate %x, %m, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
    %t = stablehlo.add %sum, %rows : tensor<2x4xf32>
    %u = stablehlo.add %other, %t : tensor<2x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t, %u : tensor<i32>, tensor<2x4xf32>, tensor<2x4xf32>
  }
  return %0#1, %0#2 : tensor<2x4xf32>, tensor<2x4xf32>
}

// -----

// What is subtracted row by row is cut.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[A0:[^ ]*]] = %{{[^ ]*}}, %[[A1:[^ ]*]] = %{{[^ ]*}}, %[[B0:[^ ]*]] = %{{[^ ]*}}, %[[B1:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[T0:.*]] = stablehlo.add %[[A0]]
// CHECK:           %[[T1:.*]] = stablehlo.add %[[A1]]
// CHECK:           %[[U0:.*]] = stablehlo.subtract %[[B0]]
// CHECK-NEXT:      %[[U1:.*]] = stablehlo.subtract %[[B1]]
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[T0]], %[[T1]], %[[U0]], %[[U1]]
func.func public @main(%x: tensor<1x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f0, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
  %0:3 = stablehlo.while(%i = %c0, %sum = %zeros, %other = %zeros) : tensor<i32>, tensor<2x4xf32>, tensor<2x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<1x4xf32>
    %rows = stablehlo.concatenate %x, %m, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32>
    %t = stablehlo.add %sum, %rows : tensor<2x4xf32>
    %u = stablehlo.subtract %other, %rows : tensor<2x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t, %u : tensor<i32>, tensor<2x4xf32>, tensor<2x4xf32>
  }
  return %0#1, %0#2 : tensor<2x4xf32>, tensor<2x4xf32>
}
