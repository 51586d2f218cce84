// RUN: jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2},unroll-loops,forward-rows" | filecheck %s

// A scan over two layers with a mark in its body is the two layers: each takes its row of the stacked weights.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:[^ ]*]]: tensor<2x4xf32>
// CHECK:         stablehlo.while(%[[I:[^ ]*]] = %{{[^ ]*}}, %[[X:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[ROW0:.*]] = stablehlo.slice %[[W]] [0:1, 0:4]
// CHECK-NEXT:      %[[W0:.*]] = stablehlo.reshape %[[ROW0]]
// CHECK-NEXT:      %[[Y0:.*]] = stablehlo.multiply %[[X]], %[[W0]]
// CHECK-NEXT:      %[[M0:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}} %[[Y0]]
// CHECK-NEXT:      %[[ROW1:.*]] = stablehlo.slice %[[W]] [1:2, 0:4]
// CHECK-NEXT:      %[[W1:.*]] = stablehlo.reshape %[[ROW1]]
// CHECK-NEXT:      %[[Y1:.*]] = stablehlo.multiply %[[M0]], %[[W1]]
// CHECK-NEXT:      %[[M1:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}} %[[Y1]]
// CHECK-NOT:       stablehlo.while
// CHECK:           stablehlo.return %{{.*}}, %[[M1]]
func.func public @main(%w: tensor<2x4xf32>, %a: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c0, %x = %a) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1:2 = stablehlo.while(%k = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %2 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.dynamic_slice %w, %k, %zero, sizes = [1, 4] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x4xf32>) -> tensor<4xf32>
      %4 = stablehlo.multiply %y, %3 : tensor<4xf32>
      %5 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %4 : tensor<4xf32>
      %6 = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %6, %5 : tensor<i32>, tensor<4xf32>
    }
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %7, %1#1 : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// What the layers stack is summed row by row: each row has an accumulator of its own. A row that is read again is the
// value that was written.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM0:[^ ]*]] = %{{[^ ]*}}, %[[SUM1:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[M0:.*]] = stablehlo.optimization_barrier
// CHECK:           %[[ROW0:.*]] = stablehlo.broadcast_in_dim %[[M0]]
// CHECK:           %[[M1:.*]] = stablehlo.optimization_barrier
// CHECK:           %[[ROW1:.*]] = stablehlo.broadcast_in_dim %[[M1]]
// CHECK-NOT:       stablehlo.dynamic_update_slice
// CHECK:           %[[R0:.*]] = stablehlo.add %[[SUM0]], %[[ROW0]]
// CHECK:           %[[R1:.*]] = stablehlo.add %[[SUM1]], %[[ROW1]]
// CHECK:           stablehlo.return %{{.*}}, %[[R0]], %[[R1]]
// CHECK:         %[[ALL:.*]] = stablehlo.concatenate %[[LOOP]]#1, %[[LOOP]]#2, dim = 0
// CHECK-NEXT:    return %[[ALL]]
func.func public @main(%a: tensor<4xf32>) -> tensor<2x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
  %0:2 = stablehlo.while(%i = %c0, %sum = %zeros) : tensor<i32>, tensor<2x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1:3 = stablehlo.while(%k = %zero, %y = %a, %rows = %zeros) : tensor<i32>, tensor<4xf32>, tensor<2x4xf32>
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %2 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.sine %y : tensor<4xf32>
      %3 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %2 : tensor<4xf32>
      %4 = stablehlo.broadcast_in_dim %3, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
      %5 = stablehlo.dynamic_update_slice %rows, %4, %k, %zero : (tensor<2x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
      %6 = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %6, %3, %5 : tensor<i32>, tensor<4xf32>, tensor<2x4xf32>
    }
    %7 = stablehlo.add %sum, %1#2 : tensor<2x4xf32>
    %8 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %8, %7 : tensor<i32>, tensor<2x4xf32>
  }
  return %0#1 : tensor<2x4xf32>
}

// -----

// Layers without a loop, whose gradients are padded to the shape of the stack: a sum for each row, here in another order,
// with two summands for the second.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM0:[^ ]*]] = %{{[^ ]*}}, %[[SUM1:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[M:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}} %[[X:.*]] : tensor<1x4xf32>
// CHECK:           %[[BOTH:.*]] = stablehlo.add %[[M]], %[[X]]
// CHECK-NOT:       stablehlo.pad
// CHECK:           %[[R0:.*]] = stablehlo.add %[[SUM0]], %[[M]]
// CHECK-NEXT:      %[[R1:.*]] = stablehlo.add %[[SUM1]], %[[BOTH]]
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[R0]], %[[R1]]
// CHECK:         %[[R:.*]] = stablehlo.concatenate %[[LOOP]]#1, %[[LOOP]]#2, dim = 0
// CHECK:         return %[[R]]
func.func public @main(%x: tensor<1x4xf32>) -> tensor<2x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f0, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
  %0:2 = stablehlo.while(%i = %c0, %sum = %zeros) : tensor<i32>, tensor<2x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<1x4xf32>
    %p1 = stablehlo.pad %x, %f0, low = [1, 0], high = [0, 0], interior = [0, 0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<2x4xf32>
    %p0 = stablehlo.pad %m, %f0, low = [0, 0], high = [1, 0], interior = [0, 0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<2x4xf32>
    %q1 = stablehlo.pad %m, %f0, low = [1, 0], high = [0, 0], interior = [0, 0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<2x4xf32>
    %a = stablehlo.add %p1, %p0 : tensor<2x4xf32>
    %b = stablehlo.add %q1, %a : tensor<2x4xf32>
    %t = stablehlo.add %sum, %b : tensor<2x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<2x4xf32>
  }
  return %0#1 : tensor<2x4xf32>
}
