// RUN: not jaxpp-opt %s -p delay-reductions 2>&1 | filecheck %s

// CHECK: loop_invalid.mlir:[[# @LINE + 4]]:3: error: no microbatch loop in its canonical form
// CHECK-NEXT: run find-microbatch-loop first
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<f32>) -> tensor<f32> {
    return %x : tensor<f32>
  }
}
