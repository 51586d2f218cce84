// RUN: not jaxpp-opt %s --split-input-file -p place-tasks 2>&1 | filecheck %s

// CHECK: main_invalid.mlir:[[# @LINE + 2]]:{{.*}}: error: the module has no jaxpp.meshes
module {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 4]]:10: error: a stablehlo.negate outside of tasks
// CHECK-NEXT: put it into a function, and call that as mpmd.task(function, out_shardings=...)
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.negate %x : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 3]]:10: error: a call of @f outside of tasks
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = call @f(%x) : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  func.func private @f(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 4]]:10: error: task 'f' on mesh 1 takes a value of mesh 0, as array 0
// CHECK-NEXT: transfer it first: mpmd.transfer(value, out_shardings=...).done()
module attributes {jaxpp.meshes = 2 : i64} { func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [], kind = "argument", meshes = array<i64: 0>}} %x : tensor<8xf32>
    %1 = call @f(%0) : (tensor<8xf32>) -> tensor<8xf32>
    %2 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[]], kind = "task", meshes = array<i64: 1>}} %1 : tensor<8xf32>
    return %2 : tensor<8xf32>
  }
  func.func private @f(%x: tensor<8xf32>) -> tensor<8xf32> {
    return %x : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 4]]:10: error: task 'f' takes no value that has a mesh
// CHECK-NEXT: give it mesh=, or NamedShardings as out_shardings
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main() -> tensor<8xf32> {
    %1 = call @f() : () -> tensor<8xf32>
    %2 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[]], kind = "task", meshes = array<i64: -1>}} %1 : tensor<8xf32>
    return %2 : tensor<8xf32>
  }
  func.func private @f() -> tensor<8xf32> {
    %0 = stablehlo.constant dense<0.0> : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 3]]:10: error: jaxpp.placed of a task, not on all results of one call
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[]], kind = "task", meshes = array<i64: 1>}} %x : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 4]]:10: error: a transfer of a value that is on no mesh
// CHECK-NEXT: put it into a function, and call that as mpmd.task(function, out_shardings=...)
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[]], kind = "transfer", meshes = array<i64: 1>}} %x : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 5]]:10: error: a transfer of a value with the sharding #sdy.sharding<@mesh, [{}]> to #sdy.sharding<@mesh, [{"data"}]>
// CHECK-NEXT: transfer it as it is, and change its sharding in a task
module attributes {jaxpp.meshes = 2 : i64, mhlo.num_partitions = 2 : i32} { sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [], kind = "argument", meshes = array<i64: 0>}} %x : tensor<8xf32>
    %1 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[["data"]]], kind = "transfer", meshes = array<i64: 1>}} %0 : tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 4]]:10: error: a sdy.sharding_constraint outside of tasks
module attributes {jaxpp.meshes = 2 : i64, mhlo.num_partitions = 2 : i32} { sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [], kind = "argument", meshes = array<i64: 0>}} %x : tensor<8xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}]> : tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 3]]:10: error: a sharding over (('model',),), expected at most 1 dimensions, and of the axes mpmd, data
module attributes {jaxpp.meshes = 2 : i64, mhlo.num_partitions = 2 : i32} { sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [[["model"]]], kind = "transfer", meshes = array<i64: 1>}} %x : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 3]]:10: error: stablehlo.optimization_barrier has jaxpp.placed = {axes = [], kind = "argument", meshes = array<i64: 2>}; expected a barrier with a kind, a mesh below 2 for each result, and their axes
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.optimization_barrier {jaxpp.placed = {axes = [], kind = "argument", meshes = array<i64: 2>}} %x : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}

// -----

// CHECK: main_invalid.mlir:[[# @LINE + 3]]:10: error: stablehlo.optimization_barrier has jaxpp.placed = {kind = "task"}; expected a barrier
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = stablehlo.optimization_barrier {jaxpp.placed = {kind = "task"}} %x : tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
