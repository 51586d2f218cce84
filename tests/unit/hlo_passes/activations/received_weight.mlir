// Mesh 0 sends mesh 1 a weight that no task made. Forwards and backwards of both microbatches read it; it is no
// activation of either.

module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %x: tensor<f32> {jaxpp.meshes = array<i64: 1>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.meshes = array<i64: 1>}) {
    %v = call @before(%w) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %a0 = call @forward_1(%v, %x) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %a1 = call @forward_1(%v, %x) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %b0 = call @backward_1(%v, %x) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %b1 = call @backward_1(%v, %x) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %b0, %b1 : tensor<f32>, tensor<f32>
  }
  func.func private @before(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "before"} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_1(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}
