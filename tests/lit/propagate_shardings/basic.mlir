// RUN: jaxpp-opt %s --split-input-file -p propagate-shardings | filecheck %s

// The batch is sharded, the weights are not. What is computed of the batch row by row is sharded like it; the gradient
// of the weights, a sum over the rows, is on every device.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<8x4xf32>, %[[X:.*]]: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK-SAME:      -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, tensor<8x4xf32>)
// CHECK-NEXT:    %[[H:.*]] = stablehlo.dot_general %[[X]], %[[W]], contracting_dims = [1] x [0]
// CHECK-SAME:        {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>}
// CHECK-NEXT:    %[[Y:.*]] = stablehlo.tanh %[[H]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>}
// CHECK-NEXT:    %[[G:.*]] = stablehlo.dot_general %[[X]], %[[Y]], contracting_dims = [0] x [0] : (
// CHECK-NEXT:    return %[[Y]], %[[G]]
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%w: tensor<8x4xf32>, %x: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
      -> (tensor<2x4xf32>, tensor<8x4xf32>) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
    %1 = stablehlo.tanh %0 : tensor<2x4xf32>
    %2 = stablehlo.dot_general %x, %1, contracting_dims = [0] x [0] : (tensor<2x8xf32>, tensor<2x4xf32>) -> tensor<8x4xf32>
    return %1, %2 : tensor<2x4xf32>, tensor<8x4xf32>
  }
}

// -----

// A submesh of one device has nothing to shard: nothing is written, and what the user said stays.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<2x8xf32> {{.*}}) -> tensor<2x8xf32> {
// CHECK-NEXT:    %[[Y:.*]] = stablehlo.tanh %[[X]] : tensor<2x8xf32>
// CHECK-NEXT:    %[[Z:.*]] = sdy.sharding_constraint %[[Y]] <@mesh, [{}, {}]> : tensor<2x8xf32>
// CHECK-NEXT:    return %[[Z]]
module attributes {mhlo.num_partitions = 1 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=1]>
  func.func public @main(%x: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<2x8xf32> {
    %0 = stablehlo.tanh %x : tensor<2x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}]> : tensor<2x8xf32>
    return %1 : tensor<2x8xf32>
  }
}

// -----

// What is asked of a result holds, though its value has another sharding: here that of an argument. A
// result that has its sharding, and one that nobody asked for anything, are as they were.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK-NEXT:    %[[Y:.*]] = stablehlo.tanh %[[X]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>}
// CHECK-NEXT:    %[[A:.*]] = sdy.sharding_constraint %[[X]] <@mesh, [{}, {}]> : tensor<2x8xf32>
// CHECK-NEXT:    %[[B:.*]] = sdy.sharding_constraint %[[X]] <@mesh, [{}, {"data"}]> : tensor<2x8xf32>
// CHECK-NEXT:    return %[[A]], %[[B]], %[[Y]], %[[Y]]
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
      -> (tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>},
          tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}]>},
          tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"mpmd"}]>}, tensor<2x8xf32>) {
    %0 = stablehlo.tanh %x : tensor<2x8xf32>
    return %x, %x, %0, %0 : tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x8xf32>
  }
}

// -----

// In a loop over steps the state has one sharding at both ends: where it was asked for behind a step, also before it.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK:         return
module attributes {mhlo.num_partitions = 2 : i32, jaxpp.train_loop = {steps = 2 : i64, state = 1 : i64, delay = 0 : i64, schedule = ""}} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%w: tensor<2x8xf32>) -> (tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
    %0 = stablehlo.tanh %w : tensor<2x8xf32>
    return %0 : tensor<2x8xf32>
  }
}

// -----

// A module that doesn't say how many partitions it has is for one device.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<2x8xf32>) -> tensor<2x8xf32> {
// CHECK-NEXT:    stablehlo.tanh %[[X]] : tensor<2x8xf32>
module {
  func.func public @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
    %0 = stablehlo.tanh %x : tensor<2x8xf32>
    return %0 : tensor<2x8xf32>
  }
}

// -----

// Two constraints of the user's: one says what is so already, and goes; the other gathers the rows of an argument, and
// stays. The constant is again one of StableHLO.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK-SAME:      -> (tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, tensor<2x8xf32>{{.*}}) {
// CHECK-NEXT:    %[[HALF:.*]] = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} dense<5.000000e-01>
// CHECK-NEXT:    %[[Y:.*]] = stablehlo.multiply %[[X]], %[[HALF]] {sdy.sharding
// CHECK-NEXT:    %[[ALL:.*]] = sdy.sharding_constraint %[[X]] <@mesh, [{}, {}]> : tensor<2x8xf32>
// CHECK-NEXT:    return %[[Y]], %[[ALL]]
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<2x8xf32>, tensor<2x8xf32>) {
    %half = stablehlo.constant dense<0.5> : tensor<2x8xf32>
    %0 = stablehlo.multiply %x, %half : tensor<2x8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}, {}]> : tensor<2x8xf32>
    %2 = sdy.sharding_constraint %x <@mesh, [{}, {}]> : tensor<2x8xf32>
    return %1, %2 : tensor<2x8xf32>, tensor<2x8xf32>
  }
}

// -----

// What the loop carries has a sharding for each value, and so have its results; the values inside have theirs.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<3x4x8xf32> {{.*}}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
// CHECK:         stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK-SAME:        attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"data"}, {}]>]>}
// CHECK:         do {
// CHECK-NEXT:      %[[SLICE:.*]] = stablehlo.dynamic_slice %[[X]], %[[I]], {{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"data"}, {}]>]>}
// CHECK-NEXT:      %[[ROWS:.*]] = stablehlo.reshape %[[SLICE]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>}
// CHECK-NEXT:      stablehlo.add %[[SUM]], %[[ROWS]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>}
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<3x4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}, {}]>}) -> tensor<4x8xf32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<4x8xf32>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x8xf32>
    cond {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.dynamic_slice %x, %i, %first, %first, sizes = [1, 4, 8] : (tensor<3x4x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x4x8xf32>
      %2 = stablehlo.reshape %1 : (tensor<1x4x8xf32>) -> tensor<4x8xf32>
      %3 = stablehlo.add %sum, %2 : tensor<4x8xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %3 : tensor<i32>, tensor<4x8xf32>
    }
    return %0#1 : tensor<4x8xf32>
  }
}

// -----

// Shardy knows no rule for the operations of CHLO. Those that work element by element pass the sharding on all the same,
// and keep nothing else.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<4x8xf32> {{.*}}) -> (tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) {
// CHECK-NEXT:    %[[Y:.*]] = chlo.erf %[[X]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : tensor<4x8xf32>
// CHECK-NEXT:    stablehlo.tanh %[[Y]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : tensor<4x8xf32>
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<4x8xf32> {
    %0 = chlo.erf %x : tensor<4x8xf32> -> tensor<4x8xf32>
    %1 = stablehlo.tanh %0 : tensor<4x8xf32>
    return %1 : tensor<4x8xf32>
  }
}

// -----

// The state of a loop over steps goes on as it is: what a step takes sharded it returns so.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK-NEXT:    %[[KEPT:.*]] = stablehlo.negate %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>}
// CHECK-NEXT:    return %[[KEPT]]
module attributes {mhlo.num_partitions = 2 : i32, jaxpp.train_loop = {steps = 2 : i64, state = 1 : i64, delay = 0 : i64, schedule = ""}} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%kept: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %x: tensor<2x4xf32>)
      -> tensor<2x4xf32> {
    %0 = stablehlo.negate %x : tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }
}
