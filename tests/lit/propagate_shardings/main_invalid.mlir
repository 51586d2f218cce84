// RUN: not jaxpp-opt %s --split-input-file -p propagate-shardings 2>&1 | filecheck %s

// Without @main Shardy ends the whole process; so the pass looks first.

// CHECK: main_invalid.mlir: error: the module has no function @main
// CHECK-NEXT: give a module as JAX lowers it
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @step(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}

// -----

// A function with branches is none of JAX's.

// CHECK: main_invalid.mlir:[[# @LINE + 2]]:3: error: @main has 2 blocks, expected one
module attributes {mhlo.num_partitions = 2 : i32} {
  func.func public @main(%x: tensor<f32>) -> tensor<f32> {
    cf.br ^next
  ^next:
    return %x : tensor<f32>
  }
}
