// RUN: not jaxpp-opt %s --split-input-file -p verify-program 2>&1 | filecheck %s

// A copy that computes.

// CHECK: kinds_invalid.mlir:[[# @LINE + 6]]:3: error: @offload_0 is of the kind 'offload', and does more than return its arguments
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<4xf32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %h = call @offload_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
  func.func private @offload_0(%x: tensor<4xf32>) -> (tensor<4xf32> {mhlo.memory_kind = "pinned_host"}) attributes {jaxpp.kind = "offload", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %x : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// A forward whose result is in the memory of the host.

// CHECK: kinds_invalid.mlir:[[# @LINE + 6]]:3: error: @forward_0 has values in another memory, and is neither an offload nor a reload
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<4xf32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %h = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return
  }
  func.func private @forward_0(%x: tensor<4xf32>) -> (tensor<4xf32> {mhlo.memory_kind = "pinned_host"}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %x : tensor<4xf32>
  }
}

// -----

// What stands for a function of the user's computes something.

// CHECK: kinds_invalid.mlir:[[# @LINE + 6]]:3: error: @log_0 stands for a function of the user's, and does more than return
module attributes {jaxpp.meshes = 1 : i64, jaxpp.operations = {log = "residuals"}} {
  func.func public @mesh_0(%x: tensor<4xf32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    call @log_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>) -> ()
    return
  }
  func.func private @log_0(%x: tensor<4xf32>) attributes {jaxpp.kind = "log", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %x : tensor<4xf32>
    return
  }
}

// -----

// What comes back is of another microbatch.

// CHECK: kinds_invalid.mlir:[[# @LINE + 4]]:10: error: the reload of stage 0, microbatch 1 takes value 0 of the offload of stage 0, microbatch 0, expected value 0 of the offload of stage 0, microbatch 1
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<4xf32> {jaxpp.number = 0 : i64}) -> (tensor<4xf32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %h = call @offload_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %y = call @reload_0(%h) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return %y : tensor<4xf32>
  }
  func.func private @offload_0(%x: tensor<4xf32>) -> (tensor<4xf32> {mhlo.memory_kind = "pinned_host"}) attributes {jaxpp.kind = "offload", jaxpp.stage = 0 : i64} {
    return %x : tensor<4xf32>
  }
  func.func private @reload_0(%x: tensor<4xf32> {mhlo.memory_kind = "pinned_host"}) -> tensor<4xf32> attributes {jaxpp.kind = "reload", jaxpp.stage = 0 : i64} {
    return %x : tensor<4xf32>
  }
}

// -----

// What comes back did not leave.

// CHECK: kinds_invalid.mlir:[[# @LINE + 3]]:10: error: the load of stage 0, microbatch 0 takes nothing that any evict returned, expected value 0 of the evict of stage 0, microbatch 0
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<4xf32> {jaxpp.number = 0 : i64}) -> (tensor<4xf32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %y = call @load_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return %y : tensor<4xf32>
  }
  func.func private @load_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "load", jaxpp.stage = 0 : i64} {
    return %x : tensor<4xf32>
  }
}
