// RUN: jaxpp-opt %s -p infer-placement | filecheck %s

// An operation without results, beside a stack in blocks.

// CHECK-LABEL: func.func public @main(
// CHECK:         call @forward_0(
// CHECK:         call @after_0(
// CHECK-LABEL: func.func private @after_0(
// CHECK-NEXT:    stablehlo.custom_call @print
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w: tensor<4x2xf32> {jaxpp.blocks = array<i64: 0, 1>}, %x: tensor<f32>) -> tensor<2x2xf32> {
    %a = stablehlo.slice %w [0:2, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
    %b = stablehlo.slice %w [2:4, 0:2] : (tensor<4x2xf32>) -> tensor<2x2xf32>
    stablehlo.custom_call @print(%x) {has_side_effect = true} : (tensor<f32>) -> ()
    %1 = call @forward_0(%a, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
    %2 = call @forward_1(%b, %1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<2x2xf32>, tensor<f32>) -> tensor<2x2xf32>
    return %2 : tensor<2x2xf32>
  }
  func.func private @forward_0(%w: tensor<2x2xf32>, %x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func private @forward_1(%w: tensor<2x2xf32>, %x: tensor<f32>) -> tensor<2x2xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    return %w : tensor<2x2xf32>
  }
}
