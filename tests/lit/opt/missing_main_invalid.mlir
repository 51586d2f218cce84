// RUN: not jaxpp-opt %s -p propagate-shardings 2>&1 | filecheck %s

// Shardy's propagation would end the process.

// CHECK: missing_main_invalid.mlir: error: the module has no function @main
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["data"=2]>
  func.func @someone() {
    return
  }
}
