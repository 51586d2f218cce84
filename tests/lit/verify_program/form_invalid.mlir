// RUN: not jaxpp-opt %s --split-input-file -p verify-program 2>&1 | filecheck %s

// The module says three meshes and has two.

// CHECK: form_invalid.mlir: error: jaxpp.meshes is 3, the module has 2 mesh functions
module attributes {jaxpp.meshes = 3 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %b:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %c = call @forward_1(%b#0) {jaxpp.mesh = 1 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32> {tf.aliasing_output = 0 : i32}) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// An argument that does not say which of the step's arguments it is.

// CHECK: form_invalid.mlir:[[# @LINE + 2]]:3: error: argument 0 of @mesh_0 has no jaxpp.number
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32>) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    return %x : tensor<f32>
  }
}

// -----

// A result that does not say which of the step's results it is.

// CHECK: form_invalid.mlir:[[# @LINE + 2]]:3: error: result 0 of @mesh_0 has no jaxpp.number
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32>) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    return %x : tensor<f32>
  }
}

// -----

// An operation that belongs into a function of its own.

// CHECK: form_invalid.mlir:[[# @LINE + 4]]:10: error: a mesh function has a stablehlo.tanh: only constants, calls, sends and receives are allowed
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = stablehlo.tanh %x : tensor<f32>
    return %a : tensor<f32>
  }
}

// -----

// Two token chains: sends and receives of one mesh have one order.

// CHECK: form_invalid.mlir:[[# @LINE + 2]]:3: error: a mesh function has 2 token chains, expected one
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %u = stablehlo.create_token : !stablehlo.token
    return %x : tensor<f32>
  }
}

// -----

// No mesh functions.

// CHECK: form_invalid.mlir: error: the module has no mesh functions
// CHECK-NEXT: run insert-transfers first
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
