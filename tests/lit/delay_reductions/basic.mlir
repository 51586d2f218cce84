// RUN: jaxpp-opt %s --split-input-file -p delay-reductions | filecheck %s

// A product summed over the rows, which are sharded: each of the two devices keeps the product of its own rows, and
// adds it to its own sum. Transpositions and constant factors are taken of each summand.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK:         %[[X:.*]]: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %[[Y:.*]]: tensor<6x4xf32>
// CHECK:         %[[ZEROS:.*]] = stablehlo.constant {{{.*}}<@mesh, [{"data"}, {}, {}]>]>} dense<0.000000e+00> : tensor<2x4x4xf32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %[[ZEROS]]) : tensor<i32>, tensor<2x4x4xf32>
// CHECK-SAME:        sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"data"}, {}, {}]>]>
// CHECK:           %[[X2:.*]] = stablehlo.reshape %[[X]] {{{.*}}<@mesh, [{"data"}, {}, {}]>]>} : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
// CHECK-NEXT:      %[[Y2:.*]] = stablehlo.reshape %[[Y]]
// CHECK-NEXT:      %[[G:.*]] = stablehlo.dot_general %[[X2]], %[[Y2]], batching_dims = [0] x [0], contracting_dims = [1] x [1] {{{.*}}<@mesh, [{"data"}, {}, {}]>]>}
// CHECK-NEXT:      %[[T:.*]] = stablehlo.transpose %[[G]], dims = [0, 2, 1]
// CHECK:           %[[H:.*]] = stablehlo.multiply %[[T]], %{{.*}} : tensor<2x4x4xf32>
// CHECK:           %[[R:.*]] = stablehlo.add %[[SUM]], %[[H]]
// CHECK:           stablehlo.return %{{[^ ]*}}, %[[R]] : tensor<i32>, tensor<2x4x4xf32>
// CHECK:         %[[TOTAL:.*]] = stablehlo.reduce(%[[LOOP]]#1 init: %{{.*}}) applies stablehlo.add across dimensions = [0] {{{.*}}<@mesh, [{}, {}]>]>}
// CHECK-NEXT:    return %[[TOTAL]]
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4x4xf32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xf32>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
            indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
      %t = stablehlo.transpose %g, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %half = stablehlo.constant dense<0.5> : tensor<4x4xf32>
      %h = stablehlo.multiply %t, %half : tensor<4x4xf32>
      %r = stablehlo.add %sum, %h : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

// -----

// A reduction over the rows (the gradient of a bias).

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK:           %[[X2:.*]] = stablehlo.reshape %{{.*}} -> tensor<2x3x4xf32>
// CHECK-NEXT:      stablehlo.reduce(%[[X2]] init: %{{.*}}) applies stablehlo.add across dimensions = [1] {{.*}} -> tensor<2x4xf32>
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4xf32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4xf32>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
            indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %none = stablehlo.constant dense<0.0> : tensor<f32>
      %g = stablehlo.reduce(%x init: %none) applies stablehlo.add across dimensions = [0] : (tensor<6x4xf32>, tensor<f32>) -> tensor<4xf32>
      %r = stablehlo.add %sum, %g : tensor<4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
    }
    return %0#1 : tensor<4xf32>
  }
}

// -----

// Rows scattered into an embedding.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK:           do {
// CHECK:           %[[ZEROS:.*]] = stablehlo.constant {{.*}} : tensor<2x5x4xf32>
// CHECK-NEXT:      "stablehlo.scatter"(%[[ZEROS]], %{{.*}}, %{{.*}}) {{.*}}<update_window_dims = [2], inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %rows: tensor<6x1xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<5x4xf32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<5x4xf32>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<5x4xf32>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
            indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %none = stablehlo.constant dense<0.0> : tensor<5x4xf32>
      %g = "stablehlo.scatter"(%none, %rows, %x) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %c : tensor<f32>
      }) : (tensor<5x4xf32>, tensor<6x1xi32>, tensor<6x4xf32>) -> tensor<5x4xf32>
      %r = stablehlo.add %sum, %g : tensor<5x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<5x4xf32>
    }
    return %0#1 : tensor<5x4xf32>
  }
}

// -----

// A sum that starts from something else than zero: that is added once, after the loop.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK:         %[[ONE:.*]] = stablehlo.constant dense<1.000000e+00> : tensor<4x4xf32>
// CHECK:         %[[TOTAL:.*]] = stablehlo.reduce
// CHECK-NEXT:    %[[ALL:.*]] = stablehlo.add %[[ONE]], %[[TOTAL]]
// CHECK-NEXT:    return %[[ALL]]
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4x4xf32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<1.0> : tensor<4x4xf32>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xf32>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
            indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
      %r = stablehlo.add %sum, %g : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

// -----

// The gradient of a mean over three weights, of which the rows are used in another order: all views are linear.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK:           %[[G:.*]] = stablehlo.dot_general %{{.*}} -> tensor<2x4x4xf32>
// CHECK-NEXT:      %[[S:.*]] = stablehlo.slice %[[G]] [0:2, 0:4:2, 0:4]
// CHECK-NEXT:      %[[F:.*]] = stablehlo.reverse %[[S]], dims = [1]
// CHECK-NEXT:      %[[H:.*]] = stablehlo.broadcast_in_dim %[[F]], dims = [0, 2, 3] {{.*}} -> tensor<2x3x2x4xf32>
// CHECK-NEXT:      stablehlo.add %{{[^ ]*}}, %[[H]]
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<3x2x4xf32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<3x2x4xf32>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<3x2x4xf32>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
            indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
      %s = stablehlo.slice %g [0:4:2, 0:4] : (tensor<4x4xf32>) -> tensor<2x4xf32>
      %f = stablehlo.reverse %s, dims = [0] : tensor<2x4xf32>
      %h = stablehlo.broadcast_in_dim %f, dims = [1, 2] : (tensor<2x4xf32>) -> tensor<3x2x4xf32>
      %r = stablehlo.add %sum, %h : tensor<3x2x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<3x2x4xf32>
    }
    return %0#1 : tensor<3x2x4xf32>
  }
}

// -----

// Of complex numbers too.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK:         %[[ZEROS:.*]] = stablehlo.constant {{{.*}}<@mesh, [{"data"}, {}, {}]>]>} dense<(0.000000e+00,0.000000e+00)> : tensor<2x4x4xcomplex<f32>>
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %{{[^ ]*}} = %[[ZEROS]])
// CHECK:         %[[TOTAL:.*]] = stablehlo.reduce
// CHECK-NEXT:    return %[[TOTAL]]
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4x4xcomplex<f32>> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<(0.0, 0.0)> : tensor<4x4xcomplex<f32>>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xcomplex<f32>>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
            indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<6x4xcomplex<f32>>, tensor<6x4xcomplex<f32>>) -> tensor<4x4xcomplex<f32>>
      %r = stablehlo.add %sum, %g : tensor<4x4xcomplex<f32>>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xcomplex<f32>>
    }
    return %0#1 : tensor<4x4xcomplex<f32>>
  }
}
