// RUN: not jaxpp-opt %s --split-input-file -p import-shardings 2>&1 | filecheck %s

// Devices in an order that no numbering of a mesh has.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{devices=[4]0,2,1,3}",
// CHECK-SAME{LITERAL}: which no mesh has: it lists the devices, so no mesh in their order has it
// CHECK-NEXT: lower it with Shardy, jax.config.update("jax_use_shardy_partitioner", True)
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[4]0,2,1,3}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// A value on one device.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{maximal device=0}",
// CHECK-SAME{LITERAL}: which no mesh has: one device of several has the value
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{maximal device=0}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// A value per device, on all axes.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{manual}",
// CHECK-SAME{LITERAL}: which no mesh has: each device has a value of its own, as in a shard_map
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{manual}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// A value per device, on some axes.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{devices=[2,2]<=[4] last_tile_dims={manual}}",
// CHECK-SAME{LITERAL}: which no mesh has: each device has a value of its own, as in a shard_map
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[2,2]<=[4] last_tile_dims={manual}}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// A partial sum.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{devices=[2,2]<=[4] last_tile_dims={unreduced}}",
// CHECK-SAME{LITERAL}: which no mesh has: the value is a partial sum
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[2,2]<=[4] last_tile_dims={unreduced}}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// A group of shardings.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{devices=[4]<=[4] shard_as 3}",
// CHECK-SAME{LITERAL}: which no mesh has: it belongs to a group of shardings
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[4] shard_as 3}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// A text that is no sharding.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "devices=[4]",
// CHECK-SAME{LITERAL}: which no mesh has: its form is unknown
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "devices=[4]"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// Fewer devices than the module has.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{devices=[2]<=[2]}",
// CHECK-SAME{LITERAL}: which no mesh has: it has 2 tiles, the module is for 4 devices (mhlo.num_partitions)
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// An order that leaves out a dimension.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{devices=[4]<=[2,2]T(0,0)}",
// CHECK-SAME{LITERAL}: which no mesh has: T(0,0) is no order of 2 dimensions
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[4]<=[2,2]T(0,0)}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// More dimensions than the value has.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{devices=[2,2]<=[4]}",
// CHECK-SAME{LITERAL}: which no mesh has: it has 2 dimensions, the value has 1
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[2,2]<=[4]}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// Tiles that cut through a digit.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{devices=[2,3]<=[3,2]}",
// CHECK-SAME{LITERAL}: which no mesh has: a dimension of 2 tiles takes a part of 3 devices in a row
module attributes {mhlo.num_partitions = 6 : i32} {
  func.func public @main(%x: tensor<8x8xf32> {mhlo.sharding = "{devices=[2,3]<=[3,2]}"}) -> tensor<8x8xf32> {
    return %x : tensor<8x8xf32>
  }
}

// -----

// A tuple for one value.

// CHECK{LITERAL}: error: argument 0 of @main has mhlo.sharding = "{{replicated}, {replicated}}",
// CHECK-SAME{LITERAL}: which no mesh has: it has 2 shardings, expected 1
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{{replicated}, {replicated}}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// Two shardings whose axes do not fit together.

// CHECK{LITERAL}: error: argument 1 of @main has mhlo.sharding = "{devices=[3,1,2]<=[6] last_tile_dim_replicate}",
// CHECK-SAME{LITERAL}: which no mesh has: no mesh has its axes and those of earlier shardings: groups of 2 and 3 devices
module attributes {mhlo.num_partitions = 6 : i32} {
  func.func public @main(
      %x: tensor<6x6xf32> {mhlo.sharding = "{devices=[2,1,3]<=[6] last_tile_dim_replicate}"},
      %y: tensor<6x6xf32> {mhlo.sharding = "{devices=[3,1,2]<=[6] last_tile_dim_replicate}"}) -> tensor<6x6xf32> {
    %0 = stablehlo.add %x, %y : tensor<6x6xf32>
    return %0 : tensor<6x6xf32>
  }
}

// -----

// Both kinds of shardings in one module.

// CHECK: error: a mesh of Shardy beside shardings of GSPMD, expected one of both
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// The beginning of code per device.

// CHECK: error: a sharding of GSPMD (custom call @SPMDFullToShardShape), expected sdy.sharding
module attributes {mhlo.num_partitions = 2 : i32} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @SPMDFullToShardShape(%x) : (tensor<8xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// A constraint of another form.

// CHECK{LITERAL}: error: a custom call @Sharding with "group", expected unspecified_dims=[...] or nothing
module attributes {mhlo.num_partitions = 2 : i32} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {backend_config = "group", mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// A constraint of another form.

// CHECK{LITERAL}: error: a custom call @Sharding without mhlo.sharding
module attributes {mhlo.num_partitions = 2 : i32} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {backend_config = ""} : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
