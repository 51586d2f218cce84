// RUN: jaxpp-opt %s --split-input-file -p "place-tasks,verify-main{placed=true}" | filecheck %s

// Barriers say where arguments, results of tasks, and results of transfers are. Calls take the values themselves. A
// function that is called with other shardings is copied.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:[^ :]*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 0>, sdy.sharding = #sdy.sharding<@mesh, [{}]>},
// CHECK-SAME:      %[[Y:[^ :]*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 1>
// CHECK-SAME:      -> (tensor<8xf32> {jaxpp.meshes = array<i64: 1>, sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>},
// CHECK-SAME:          tensor<8xf32> {jaxpp.meshes = array<i64: 0>
// CHECK-NEXT:    %[[C:.*]] = stablehlo.constant
// CHECK-NEXT:    %[[A:.*]] = call @f(%[[X]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[B:.*]] = call @f_1(%[[A]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[D:.*]] = call @g(%[[B]], %[[Y]], %[[C]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[D]], %[[X]]
// CHECK-LABEL: func.func private @f(
// CHECK-SAME:      sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>})
// CHECK-SAME:      attributes {jaxpp.kind = "fragment"}
// CHECK-LABEL: func.func private @g(
// CHECK-LABEL: func.func private @f_1(
// CHECK-SAME:      sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>}) -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>})
module attributes {jaxpp.meshes = 2 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
    %c = stablehlo.constant dense<1.0> : tensor<f32>
    %0:2 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [], kind = "argument", meshes = array<i64: 0, 1>}} %x, %y : tensor<8xf32>, tensor<8xf32>
    %1 = call @f(%0#0) : (tensor<8xf32>) -> tensor<8xf32>
    %2 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[["data"]]], kind = "task", meshes = array<i64: -1>}} %1 : tensor<8xf32>
    %3 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[["data"]]], kind = "transfer", meshes = array<i64: 1>}} %2 : tensor<8xf32>
    %4 = call @f(%3) : (tensor<8xf32>) -> tensor<8xf32>
    %5 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[["data"]]], kind = "task", meshes = array<i64: 1>}} %4 : tensor<8xf32>
    %6 = call @g(%5, %0#1, %c) : (tensor<8xf32>, tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
    %7 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[["data"]]], kind = "task", meshes = array<i64: 1>}} %6 : tensor<8xf32>
    %8 = sdy.sharding_constraint %7 <@mesh, [{"data"}]> : tensor<8xf32>
    return %8, %0#0 : tensor<8xf32>, tensor<8xf32>
  }
  func.func private @f(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.negate %x : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  func.func private @g(%x: tensor<8xf32>, %y: tensor<8xf32>, %c: tensor<f32>) -> tensor<8xf32> {
    %0 = stablehlo.add %x, %y : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// On meshes of one device there are no shardings. A value may be returned where a transfer has brought it.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:[^ :]*]]: tensor<8xf32> {jaxpp.meshes = array<i64: 1>})
// CHECK-SAME:      -> (tensor<8xf32> {jaxpp.meshes = array<i64: 0>})
// CHECK-NEXT:    return %[[X]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [], kind = "argument", meshes = array<i64: 1>}} %x : tensor<8xf32>
    %1 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[]], kind = "transfer", meshes = array<i64: 0>}} %0 : tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}

// -----

// With explicit axes JAX constrains the results of a call, and arrays that are constants.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:[^ :]*]]: tensor<8xf32>
// CHECK-NEXT:    %[[C:.*]] = stablehlo.constant
// CHECK-NEXT:    %[[A:.*]] = call @f(%[[X]], %[[C]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    return %[[A]]
module attributes {jaxpp.meshes = 2 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %c = stablehlo.constant dense<1.0> : tensor<8xf32>
    %0 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [], kind = "argument", meshes = array<i64: 0>}} %x : tensor<8xf32>
    %1 = sdy.sharding_constraint %c <@mesh, [{}]> : tensor<8xf32>
    %2 = call @f(%0, %1) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %3 = sdy.sharding_constraint %2 <@mesh, [{"data"}]> : tensor<8xf32>
    %4 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[["data"]]], kind = "task", meshes = array<i64: 0>}} %3 : tensor<8xf32>
    return %4 : tensor<8xf32>
  }
  func.func private @f(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.add %x, %y : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
