// RUN: jaxpp-opt %s --split-input-file -p propagate-shardings | filecheck %s

// The next stage wants smaller shards: the sender cuts them, and each device sends a quarter instead of a half.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<8x16xf32>
// CHECK:         %[[Y:.*]] = stablehlo.tanh %[[X]]
// CHECK-NEXT:    %[[S:.*]] = sdy.sharding_constraint %[[Y]] <@mesh, [{"data"}, {"model"}]>
// CHECK-NEXT:    %[[B:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {"model"}]>]>} %[[S]]
// CHECK-NEXT:    %[[Z:.*]] = stablehlo.cosine %[[B]]
// CHECK-NEXT:    return %[[Z]], %[[Y]]
module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2, "model"=2]>
  func.func public @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<8x16xf32>, tensor<8x16xf32>) {
    %y = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : tensor<8x16xf32>
    %b = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {"model"}]>]>} %y : tensor<8x16xf32>
    %z = stablehlo.cosine %b {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {"model"}]>]>} : tensor<8x16xf32>
    return %z, %y : tensor<8x16xf32>, tensor<8x16xf32>
  }
}

// -----

// The next stage wants larger ones: it gathers them itself. The other value of the mark crosses as it is.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<8x16xf32> {{.*}}, %[[I:.*]]: tensor<4xi32>
// CHECK:         %[[B:.*]]:2 = stablehlo.optimization_barrier {{.*}}sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {"model"}]>, <@mesh, [{}]>]>} %[[X]], %[[I]]
// CHECK-NEXT:    %[[S:.*]] = sdy.sharding_constraint %[[B]]#0 <@mesh, [{"data"}, {}]>
// CHECK-NEXT:    %[[Z:.*]] = stablehlo.cosine %[[S]]
// CHECK-NEXT:    return %[[Z]], %[[B]]#1, %[[S]]
module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2, "model"=2]>
  func.func public @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}, %i: tensor<4xi32>) -> (tensor<8x16xf32>, tensor<4xi32>, tensor<8x16xf32>) {
    %b:2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>, <@mesh, [{}]>]>} %x, %i : tensor<8x16xf32>, tensor<4xi32>
    %z = stablehlo.cosine %b#0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : tensor<8x16xf32>
    return %z, %b#1, %b#0 : tensor<8x16xf32>, tensor<4xi32>, tensor<8x16xf32>
  }
}

// -----

// The stage gathers what it only hands on: the next stage does that. What it needs itself it keeps.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<8x16xf32>
// CHECK-NEXT:    %[[K:.*]] = sdy.sharding_constraint %[[X]] <@mesh, [{}, {"model"}]>
// CHECK-NEXT:    %[[B:.*]]:2 = stablehlo.optimization_barrier {{.*}}[<@mesh, [{"data"}, {}]>, <@mesh, [{}, {"model"}]>]>} %[[X]], %[[K]]
// CHECK-NEXT:    %[[S:.*]] = sdy.sharding_constraint %[[B]]#0 <@mesh, [{}, {}]>
// CHECK-NEXT:    return %[[K]], %[[S]], %[[B]]#1
module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2, "model"=2]>
  func.func public @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>) {
    %w = sdy.sharding_constraint %x <@mesh, [{}, {}]> : tensor<8x16xf32>
    %k = sdy.sharding_constraint %x <@mesh, [{}, {"model"}]> : tensor<8x16xf32>
    %b:2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>, <@mesh, [{}, {"model"}]>]>} %w, %k : tensor<8x16xf32>, tensor<8x16xf32>
    return %k, %b#0, %b#1 : tensor<8x16xf32>, tensor<8x16xf32>, tensor<8x16xf32>
  }
}

// -----

// A mesh of one device has nothing to reshard.

// CHECK-LABEL: func.func public @main(
// CHECK-NOT:     sharding_constraint
module attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
    %b = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<8x16xf32>
    return %b : tensor<8x16xf32>
  }
}
