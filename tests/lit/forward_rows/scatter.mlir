// RUN: jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2},unroll-loops,forward-rows" | filecheck %s

// The gradient of rows that were gathered at constant indices is added to zeros at these: a sum for each row, in the order
// of the stack. Row 1 was gathered twice, row 2 never: it stays zeros, outside of the loop.

// CHECK-LABEL: func.func public @main(
// CHECK-COUNT-2: stablehlo.broadcast_in_dim
// CHECK-NEXT:    %[[ZEROS:.*]] = stablehlo.broadcast_in_dim %{{.*}} : (tensor<f32>) -> tensor<1x4xf32>
// CHECK-NEXT:    %[[LOOP:.*]]:3 = stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM0:[^ ]*]] = %{{[^ ]*}}, %[[SUM1:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[M:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}} %[[X:.*]] : tensor<1x4xf32>
// CHECK-DAG:       %[[BOTH:.*]] = stablehlo.add %[[X]], %[[M]]
// CHECK-NOT:       stablehlo.scatter
// CHECK-DAG:       %[[R0:.*]] = stablehlo.add %[[SUM0]], %[[M]]
// CHECK-DAG:       %[[R1:.*]] = stablehlo.add %[[SUM1]], %[[BOTH]]
// CHECK:           stablehlo.return %{{.*}}, %[[R0]], %[[R1]] :
// CHECK:         %[[R:.*]] = stablehlo.concatenate %[[LOOP]]#1, %[[LOOP]]#2, %[[ZEROS]], dim = 0
// CHECK:         return %[[R]]
func.func public @main(%x: tensor<1x4xf32>) -> tensor<3x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f0, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
  %index = stablehlo.constant dense<[1, 0, 1]> : tensor<3xi32>
  %0:2 = stablehlo.while(%i = %c0, %sum = %zeros) : tensor<i32>, tensor<3x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<1x4xf32>
    %g = stablehlo.concatenate %x, %m, %m, dim = 0 : (tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>) -> tensor<3x4xf32>
    %rows = "stablehlo.scatter"(%zeros, %index, %g) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
    }) : (tensor<3x4xf32>, tensor<3xi32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %t = stablehlo.add %sum, %rows : tensor<3x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<3x4xf32>
  }
  return %0#1 : tensor<3x4xf32>
}

// -----

// Rows that follow one another keep together, as far as they were one piece: two stages of two layers each have two sums.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM0:[^ ]*]] = %{{[^ ]*}}, %[[SUM1:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[M:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}} %[[X:.*]] : tensor<1x2x4xf32>
// CHECK-DAG:       %[[FIRST:.*]] = stablehlo.reshape %[[X]] : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
// CHECK-DAG:       %[[SECOND:.*]] = stablehlo.reshape %[[M]] : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
// CHECK-DAG:       stablehlo.add %[[SUM0]], %[[SECOND]]
// CHECK-DAG:       stablehlo.add %[[SUM1]], %[[FIRST]]
// CHECK:         stablehlo.concatenate %[[LOOP]]#1, %[[LOOP]]#2, dim = 0
func.func public @main(%x: tensor<1x2x4xf32>) -> tensor<4x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zeros = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %index = stablehlo.constant dense<[[[2], [3]], [[0], [1]]]> : tensor<2x2x1xi32>
  %0:2 = stablehlo.while(%i = %c0, %sum = %zeros) : tensor<i32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<1x2x4xf32>
    %g = stablehlo.concatenate %x, %m, dim = 0 : (tensor<1x2x4xf32>, tensor<1x2x4xf32>) -> tensor<2x2x4xf32>
    %rows = "stablehlo.scatter"(%zeros, %index, %g) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
    }) : (tensor<4x4xf32>, tensor<2x2x1xi32>, tensor<2x2x4xf32>) -> tensor<4x4xf32>
    %t = stablehlo.add %sum, %rows : tensor<4x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<4x4xf32>
  }
  return %0#1 : tensor<4x4xf32>
}

// -----

// Rows that are written over zeros at the numbers that an array has for the layers: a sum for each, too.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[LOOP:.*]]:3 = stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM0:[^ ]*]] = %{{[^ ]*}}, %[[SUM1:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[M0:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}} %{{.*}} : tensor<1x4xf32>
// CHECK:           %[[M1:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}} %[[M0]] : tensor<1x4xf32>
// CHECK-DAG:       stablehlo.add %[[SUM0]], %[[M1]]
// CHECK-DAG:       stablehlo.add %[[SUM1]], %[[M0]]
func.func public @main(%x: tensor<1x4xf32>) -> tensor<2x4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %f0 = stablehlo.constant dense<0.0> : tensor<f32>
  %zeros = stablehlo.broadcast_in_dim %f0, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
  %numbers = stablehlo.constant dense<[1, 0]> : tensor<2xi32>
  %0:3 = stablehlo.while(%i = %c0, %sum = %zeros, %array = %numbers) : tensor<i32>, tensor<2x4xf32>, tensor<2xi32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1:3 = stablehlo.while(%k = %zero, %y = %x, %g = %zeros) : tensor<i32>, tensor<1x4xf32>, tensor<2x4xf32>
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %2 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %y : tensor<1x4xf32>
      %2 = stablehlo.dynamic_slice %array, %k, sizes = [1] : (tensor<2xi32>, tensor<i32>) -> tensor<1xi32>
      %row = stablehlo.reshape %2 : (tensor<1xi32>) -> tensor<i32>
      %3 = stablehlo.dynamic_update_slice %zeros, %m, %row, %zero : (tensor<2x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x4xf32>
      %4 = stablehlo.add %g, %3 : tensor<2x4xf32>
      %5 = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %5, %m, %4 : tensor<i32>, tensor<1x4xf32>, tensor<2x4xf32>
    }
    %7 = stablehlo.add %sum, %1#2 : tensor<2x4xf32>
    %8 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %8, %7, %array : tensor<i32>, tensor<2x4xf32>, tensor<2xi32>
  }
  return %0#1 : tensor<2x4xf32>
}
