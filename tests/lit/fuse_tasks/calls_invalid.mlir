// RUN: not jaxpp-opt %s -p fuse-tasks 2>&1 | filecheck %s

// What is to be one task waits for a task that waits for it.

// CHECK: calls_invalid.mlir:[[# @LINE + 4]]:10: error: the calls with jaxpp.fused = 0 : i64 can't be one: this operation between them needs what they make
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %a = call @forward_0(%x) {jaxpp.fused = 0 : i64, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %b = call @forward_1(%a) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %c = call @forward_0(%b) {jaxpp.fused = 0 : i64, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return %c : tensor<4xf32>
  }
  func.func private @forward_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %x : tensor<4xf32>
  }
  func.func private @forward_1(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    return %x : tensor<4xf32>
  }
}
