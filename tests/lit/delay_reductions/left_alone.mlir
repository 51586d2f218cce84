// RUN: jaxpp-opt %s --split-input-file -p delay-reductions | filecheck %s

// Something else needs the gradient of each microbatch.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK-NOT:     tensor<2x{{[45]}}x4xf32>
// CHECK:         stablehlo.sine
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
      %s = stablehlo.sine %g : tensor<4x4xf32>
      %h = stablehlo.add %g, %s : tensor<4x4xf32>
      %r = stablehlo.add %sum, %h : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

// -----

// A maximum is no sum.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK-NOT:     tensor<2x{{[45]}}x4xf32>
// CHECK:         stablehlo.maximum
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
      %r = stablehlo.maximum %sum, %g : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

// -----

// The sine of a sum is not the sum of the sines.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK-NOT:     tensor<2x{{[45]}}x4xf32>
// CHECK:         stablehlo.sine
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
      %s = stablehlo.sine %g : tensor<4x4xf32>
      %r = stablehlo.add %sum, %s : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

// -----

// A cast to a narrower type would round each summand.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK-NOT:     tensor<2x{{[45]}}x4xf32>
// CHECK:         stablehlo.convert
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4x4xbf16> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<4x4xbf16>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xbf16>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
            indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
      %s = stablehlo.convert %g : (tensor<4x4xf32>) -> tensor<4x4xbf16>
      %r = stablehlo.add %sum, %s : tensor<4x4xbf16>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xbf16>
    }
    return %0#1 : tensor<4x4xbf16>
  }
}

// -----

// A part of the sum is no sum over the rows: the decay of a weight.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK-NOT:     tensor<2x{{[45]}}x4xf32>
// CHECK:         stablehlo.add
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
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
      %h = stablehlo.add %g, %w : tensor<4x4xf32>
      %r = stablehlo.add %sum, %h : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

// -----

// Rows that are on every device need no reduction.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK-NOT:     tensor<2x{{[45]}}x4xf32>
// CHECK:         stablehlo.dot_general
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32>, %y: tensor<6x4xf32>) -> tensor<4x4xf32> {
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
      %r = stablehlo.add %sum, %g : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

// -----

// Five rows on two devices: the groups would have unequal sizes.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK-NOT:     tensor<2x{{[45]}}x4xf32>
// CHECK:         stablehlo.dot_general
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<5x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<5x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4x4xf32> {
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
      %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<5x4xf32>, tensor<5x4xf32>) -> tensor<4x4xf32>
      %r = stablehlo.add %sum, %g : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

// -----

// What the accumulator is so far is read in the loop.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK-NOT:     tensor<2x{{[45]}}x4xf32>
// CHECK:         stablehlo.dot_general
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
      %h = stablehlo.multiply %sum, %sum : tensor<4x4xf32>
      %r = stablehlo.add %h, %g : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

// -----

// With one microbatch there is one reduction anyway.

// CHECK-LABEL: module
// CHECK-NEXT:    sdy.mesh
// CHECK-NOT:     tensor<2x{{[45]}}x4xf32>
// CHECK:         stablehlo.dot_general
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4x4xf32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xf32>
        attributes {jaxpp.microbatch_loop = {length = 1 : i64, schedule = "", stages = 1 : i64,
            indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %limit = stablehlo.constant dense<1> : tensor<i32>
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
