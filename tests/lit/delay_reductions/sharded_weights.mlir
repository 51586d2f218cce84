// RUN: jaxpp-opt %s --split-input-file -p delay-reductions | filecheck %s
// RUN: jaxpp-opt %s --split-input-file -p "delay-reductions{gather-weights=step scatter-gradients=step}" | filecheck %s --check-prefix=STEP

// A weight that is sharded like the batch (FSDP): its gradient is summed and scattered for each microbatch, unless
// asked otherwise. The module says what that would cost: 64 bytes per device instead of 32.

// CHECK-LABEL: module attributes
// CHECK-SAME:      jaxpp.bytes = {gather_weights = 0 : i64, scatter_gradients = 32 : i64}
// CHECK:           stablehlo.dot_general %{{.*}} -> tensor<4x4xf32>
// STEP-LABEL:  module attributes
// STEP-SAME:       jaxpp.bytes = {gather_weights = 0 : i64, scatter_gradients = 32 : i64}
// STEP:            stablehlo.dot_general %{{.*}} -> tensor<2x4x4xf32>
// STEP:          stablehlo.reduce({{.*}} across dimensions = [0] {{{.*}}<@mesh, [{"data"}, {}]>]>}
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4x4xf32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xf32>
        attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"data"}, {}]>]>, jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 1 : i64,
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

// The weight itself: each product gathers it, or the loop gets it gathered.

// CHECK-LABEL: module attributes
// CHECK-SAME:      jaxpp.bytes = {gather_weights = 64 : i64, scatter_gradients = 0 : i64}
// CHECK:         %[[W:[^ :]*]]: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}
// CHECK-NOT:     sdy.sharding_constraint
// CHECK:           %[[T:.*]] = stablehlo.transpose %[[W]], dims = [1, 0] {{{.*}}<@mesh, [{}, {"data"}]>]>}
// STEP-LABEL:  module attributes
// STEP:          %[[W:[^ :]*]]: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}
// STEP:          %[[WHOLE:.*]] = sdy.sharding_constraint %[[W]] <@mesh, [{}, {}]>
// STEP:          stablehlo.while
// STEP:            %[[T:.*]] = stablehlo.transpose %[[WHOLE]], dims = [1, 0] {{{.*}}<@mesh, [{}, {}]>]>}
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4x4xf32> {
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
      %t = stablehlo.transpose %w, dims = [1, 0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"data"}]>]>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %h = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
      %g = stablehlo.dot_general %x, %h, contracting_dims = [0] x [0] : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
      %r = stablehlo.add %sum, %g : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

// -----

// A part of a weight, as of one for queries, keys and values: gathered like the whole.

// CHECK-LABEL: module attributes
// CHECK-SAME:      jaxpp.bytes = {gather_weights = 128 : i64, scatter_gradients = 0 : i64}
// STEP-LABEL:  module attributes
// STEP:          %[[W:[^ :]*]]: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}
// STEP:          %[[WHOLE:.*]] = sdy.sharding_constraint %[[W]] <@mesh, [{}, {}]>
// STEP:          stablehlo.while
// STEP:            %[[Q:.*]] = stablehlo.slice %[[WHOLE]] [0:4, 0:4] {{{.*}}<@mesh, [{}, {}]>]>}
// STEP-NEXT:       stablehlo.transpose %[[Q]], dims = [1, 0] {{{.*}}<@mesh, [{}, {}]>]>}
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %y: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4x4xf32> {
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
      %q = stablehlo.slice %w [0:4, 0:4] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : (tensor<4x8xf32>) -> tensor<4x4xf32>
      %t = stablehlo.transpose %q, dims = [1, 0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"data"}]>]>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %h = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : (tensor<6x4xf32>, tensor<4x4xf32>) -> tensor<6x4xf32>
      %g = stablehlo.dot_general %x, %h, contracting_dims = [0] x [0] : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<4x4xf32>
      %r = stablehlo.add %sum, %g : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %r : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}

