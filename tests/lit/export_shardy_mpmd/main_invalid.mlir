// RUN: not jaxpp-opt %s --split-input-file -p export-shardy-mpmd 2>&1 | filecheck %s

// A module that is not placed.

// CHECK: error: no jaxpp.meshes, expected the number of meshes
// CHECK-NEXT: run infer-placement first
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}

// -----

// An argument that is stored as blocks.

// CHECK: error: an argument or result of @main is stored as blocks on several meshes, which is not exported
// CHECK-NEXT: leave out split-stacks
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<4xf32> {jaxpp.meshes = array<i64: 0, 1>, jaxpp.blocks = array<i64: 0, 1>}) -> (tensor<2xf32> {jaxpp.meshes = array<i64: 0>}) {
    %0 = stablehlo.slice %x [0:2] : (tensor<4xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}

// -----

// An operation that is no call.

// CHECK: main_invalid.mlir:[[# @LINE + 4]]:10: error: stablehlo.negate is in @main, which is not exported
// CHECK-NEXT: leave out split-stacks
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %0 = stablehlo.negate %x : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// A task that calls a function of the user.

// CHECK: error: the task of kind 'log' calls a function of the user, which is not exported
// CHECK-NEXT: take it out of the schedule
module attributes {jaxpp.meshes = 1 : i64, jaxpp.operations = {log = ""}} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    call @log_0() {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : () -> ()
    return %x : tensor<f32>
  }
  func.func private @log_0() attributes {jaxpp.kind = "log", jaxpp.stage = 0 : i64} {
    return
  }
}

// -----

// A task that copies residuals to the memory of the host.

// CHECK: error: the task of kind 'offload' copies to or from the host, which is not exported
// CHECK-NEXT: take it out of the schedule
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %0 = call @offload_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @offload_0(%a: tensor<f32>) -> (tensor<f32> {mhlo.memory_kind = "pinned_host"}) attributes {jaxpp.kind = "offload", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}
