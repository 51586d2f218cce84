// RUN: jaxpp-opt %s --split-input-file -p assign-stages,place-residuals,outline-stages | filecheck %s

// Every argument and result of a task has its sharding, with no dimension left open: replicated, where a value has none.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:.*]]: tensor<4x4xf32>, %[[X:.*]]: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK-SAME:      -> tensor<4x4xf32>
// CHECK:         %[[LOOP:.*]]:2 = stablehlo.while(%[[I:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}})
// CHECK:           %[[F0:.*]] = func.call @forward_0(%[[X]]) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]] = func.call @forward_1(%[[X]], %[[F0]], %[[W]], %[[SUM]]) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      stablehlo.return %{{.*}}, %[[F1]]
// CHECK:         return %[[LOOP]]#1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK-SAME:      -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {?}]>]>}
// CHECK-NEXT:    return %[[TANH]]
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %[[B:.*]]: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %[[C:.*]]: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %[[D:.*]]: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})
// CHECK-SAME:      -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[MUL:.*]] = stablehlo.multiply %[[DOT]], %[[C]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[D]], %[[MUL]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%w: tensor<4x4xf32>, %x: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
      -> tensor<4x4xf32> {
    %first = stablehlo.constant dense<0> : tensor<i32>
    %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
    %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4x4xf32>
        attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
            indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %1 = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {?}]>]>} : tensor<2x4xf32>
      %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {?}]>]>} %1 : tensor<2x4xf32>
      %3 = stablehlo.dot_general %x, %2, contracting_dims = [0] x [0] : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
      %4 = stablehlo.multiply %3, %w : tensor<4x4xf32>
      %5 = stablehlo.add %sum, %4 : tensor<4x4xf32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %5 : tensor<i32>, tensor<4x4xf32>
    }
    return %0#1 : tensor<4x4xf32>
  }
}
