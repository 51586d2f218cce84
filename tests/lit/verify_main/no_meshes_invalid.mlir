// RUN: jaxpp-opt %s -p verify-main
// RUN: not jaxpp-opt %s -p "verify-main{placed=true}" 2>&1 | filecheck %s

// Where everything should have a mesh, nothing of @main has one.

// CHECK: no_meshes_invalid.mlir:[[# @LINE + 2]]:{{[0-9]+}}: error: argument 0 of @main has no mesh; the meshes are 0 to 1
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x: tensor<f32>) -> (tensor<f32>) {
  %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
  return %a : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %a = stablehlo.tanh %x : tensor<f32>
  return %a : tensor<f32>
}
}
