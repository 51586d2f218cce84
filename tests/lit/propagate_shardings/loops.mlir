// RUN: jaxpp-opt %s -p find-microbatch-loop,propagate-shardings | filecheck %s

// A scan inside of a stage hands its weights on unchanged. XLA drops such values of a loop and would be left with one
// sharding too many; so the scan has one for each value that it still carries: the index, and the activations.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: tensor<4x8xf32> {{.*}}, %[[W:.*]]: tensor<8x8xf32>)
// CHECK:         stablehlo.while({{.*}} attributes {jaxpp.microbatch_loop = {
// CHECK:           stablehlo.while(%{{.*}} = %{{.*}}, %[[H:.*]] = %[[X]]) : tensor<i32>, tensor<4x8xf32>
// CHECK-SAME:          attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"data"}, {}]>]>}
// CHECK:           do {
// CHECK:             stablehlo.dot_general %[[H]], %[[W]], contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>}
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %w: tensor<8x8xf32>) -> tensor<4x8xf32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%i = %first, %sum = %x) : tensor<i32>, tensor<4x8xf32>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: gpipe\0Aplacement: 0 1\0Amesh 0: 0F0 0F1\0Amesh 1: 1F0 1F1"}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1:3 = stablehlo.while(%j = %first, %h = %x, %v = %w) : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>
      cond {
        %limit = stablehlo.constant dense<3> : tensor<i32>
        %4 = stablehlo.compare LT, %j, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %4 : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %next = stablehlo.add %j, %one : tensor<i32>
        %4 = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
        stablehlo.return %next, %4, %v : tensor<i32>, tensor<4x8xf32>, tensor<8x8xf32>
      }
      %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1#1 : tensor<4x8xf32>
      %loss = stablehlo.sine %2 : tensor<4x8xf32>
      %3 = stablehlo.add %sum, %loss : tensor<4x8xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %3 : tensor<i32>, tensor<4x8xf32>
    }
    return %0#1 : tensor<4x8xf32>
  }
}
