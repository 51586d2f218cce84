// RUN: jaxpp-opt %s --split-input-file -p import-shardings | filecheck %s
// RUN: not jaxpp-opt %s --split-input-file -p inline-calls 2>&1 | filecheck %s --check-prefix=ALONE
// ALONE: error: a sharding of GSPMD (mhlo.sharding), expected sdy.sharding: XLA would shard by it, jaxpp would not
// ALONE-NEXT: lower it with Shardy, jax.config.update("jax_use_shardy_partitioner", True), or begin with the pass import-shardings

// Shardings over the halves and the quarters of eight devices, in both orders, need three axes. A tuple has the
// shardings of several results.

// CHECK-LABEL: module @three_axes
// CHECK: sdy.mesh @mesh = <["axis_0"=2, "axis_1"=2, "axis_2"=2]>
// CHECK: @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_0"}, {}]>}
// CHECK-SAME: %arg1: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"axis_1", "axis_2"}]>})
// CHECK-SAME: -> (tensor<8x8xf32>, tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_2", "axis_0"}, {}]>})
// CHECK: %[[PRODUCT:.*]] = stablehlo.dot_general
// CHECK-NEXT: %[[PLACED:.*]] = sdy.sharding_constraint %[[PRODUCT]] <@mesh, [{"axis_0"}, {?}]>
// CHECK-NEXT: stablehlo.optimization_barrier {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>,
// CHECK-SAME: <@mesh, [{"axis_0", "axis_1", "axis_2"}, {}]>]>} %[[PRODUCT]], %[[PLACED]]
// CHECK: func.func private @f(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
// CHECK: stablehlo.tanh %arg0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"axis_0"}, {"axis_1", "axis_2"}]>]>}
module @three_axes attributes {mhlo.num_partitions = 8 : i32} {
  func.func public @main(
      %x: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"},
      %w: tensor<4x8xf32> {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"})
      -> (tensor<8x8xf32>,
          tensor<8x8xf32> {mhlo.sharding = "{devices=[4,1,2]<=[2,2,2]T(2,0,1) last_tile_dims={replicated}}"}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.custom_call @Sharding(%0) {backend_config = "unspecified_dims=[1]",
      mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %2:2 = stablehlo.optimization_barrier {mhlo.sharding = "{{replicated}, {devices=[8,1]<=[8]}}"} %0, %1
      : tensor<8x8xf32>, tensor<8x8xf32>
    %3 = call @f(%2#1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    return %2#0, %3 : tensor<8x8xf32>, tensor<8x8xf32>
  }
  func.func private @f(%x: tensor<8x8xf32> {mhlo.sharding = "{replicated}"}) -> tensor<8x8xf32> {
    %0 = stablehlo.tanh %x {mhlo.sharding = "{devices=[2,4]<=[8]}"} : tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}

// -----

// Values that are whole on all devices need one axis. The name @mesh is a function's.

// CHECK-LABEL: module @one_axis
// CHECK: sdy.mesh @mesh_ = <["axis_0"=2]>
// CHECK: @main(%arg0: tensor<f32> {sdy.sharding = #sdy.sharding<@mesh_, []>})
module @one_axis attributes {mhlo.num_partitions = 2 : i32} {
  func.func public @main(%x: tensor<f32> {mhlo.sharding = "{replicated}"}) -> tensor<f32> {
    %0 = call @mesh(%x) : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @mesh(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}

// -----

// The tiles of six devices: a dimension may take a part of a digit.

// CHECK-LABEL: module @six
// CHECK: sdy.mesh @mesh = <["axis_0"=2, "axis_1"=3]>
// CHECK: @main(%arg0: tensor<6x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"axis_0"}, {"axis_1"}]>})
// CHECK-SAME: -> (tensor<6x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"axis_1", "axis_0"}]>})
module @six attributes {mhlo.num_partitions = 6 : i32} {
  func.func public @main(%x: tensor<6x6xf32> {mhlo.sharding = "{devices=[2,3]<=[6]}"})
      -> (tensor<6x6xf32> {mhlo.sharding = "{devices=[1,6]<=[2,3]T(1,0)}"}) {
    %0 = stablehlo.sine %x : tensor<6x6xf32>
    return %0 : tensor<6x6xf32>
  }
}
