// RUN: jaxpp-opt %s -p propagate-shardings | filecheck %s
// RUN: jaxpp-opt %s -p propagate-shardings | filecheck %s --check-prefix=GONE

// Shardy merges equal operations, here two constants, but neither the first keys with the first values nor what two
// slices compute of the same.

// CHECK-COUNT-2: stablehlo.broadcast_in_dim
// CHECK-NOT:     stablehlo.broadcast_in_dim
// CHECK:         stablehlo.while
// CHECK:           %[[A:.*]] = stablehlo.add %[[I:[^ ]*]], %[[ONE:[^ ]*]] : tensor<i32>
// CHECK:           %[[B:.*]] = stablehlo.add %[[I]], %[[ONE]] : tensor<i32>
// CHECK:           stablehlo.multiply %[[A]], %[[B]]

// GONE-NOT: jaxpp.{{apart|slice}}
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<i32>, tensor<2x4xf32>) {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %none = stablehlo.constant dense<0.0> : tensor<f32>
    %keys = stablehlo.broadcast_in_dim %none, dims = [] {jaxpp.apart = 0 : i64} : (tensor<f32>) -> tensor<2x4xf32>
    %values = stablehlo.broadcast_in_dim %none, dims = [] {jaxpp.apart = 1 : i64} : (tensor<f32>) -> tensor<2x4xf32>
    %same = stablehlo.broadcast_in_dim %none, dims = [] {jaxpp.apart = 1 : i64} : (tensor<f32>) -> tensor<2x4xf32>
    %0:2 = stablehlo.while(%i = %first, %sum = %x) : tensor<i32>, tensor<2x4xf32>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, slices = 2 : i64}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %a = stablehlo.add %i, %one {jaxpp.slice = 0 : i64} : tensor<i32>
      %one_again = stablehlo.constant dense<1> : tensor<i32>
      %b = stablehlo.add %i, %one_again {jaxpp.slice = 1 : i64} : tensor<i32>
      %next = stablehlo.multiply %a, %b : tensor<i32>
      %1 = stablehlo.add %sum, %keys : tensor<2x4xf32>
      %2 = stablehlo.multiply %1, %values : tensor<2x4xf32>
      %3 = stablehlo.add %2, %same : tensor<2x4xf32>
      stablehlo.return %next, %3 : tensor<i32>, tensor<2x4xf32>
    }
    return %0#0, %0#1 : tensor<i32>, tensor<2x4xf32>
  }
}
