// A forward adds to a sum, and is one task with the backward of the microbatch before, which is recomputed. The sum that
// this forward takes is made by the forward of that microbatch, but its backward does not read it: until the recompute
// nothing of the microbatch is alive, and of two one is at once.

module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}, tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %zero = call @before() {jaxpp.mesh = 0 : i64} : () -> tensor<f32>
    %s0 = call @forward_0(%x, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %r0 = call @recompute_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %s1, %d0 = call @both(%x, %s0, %r0) {jaxpp.mesh = 0 : i64, jaxpp.microbatches = array<i64: 1, 0>, jaxpp.stages = array<i64: 0, 0>} : (tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %r1 = call @recompute_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %s2, %d1 = call @both(%x, %s1, %r1) {jaxpp.mesh = 0 : i64, jaxpp.microbatches = array<i64: 2, 1>, jaxpp.stages = array<i64: 0, 0>} : (tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %r2 = call @recompute_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %d2 = call @backward_0(%x, %r2) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %s2, %d2 : tensor<f32>, tensor<f32>
  }
  func.func private @before() -> tensor<f32> attributes {jaxpp.kind = "before"} {
    %0 = stablehlo.constant dense<0.0> : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.add %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @recompute_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "recompute", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @both(%a: tensor<f32> {jaxpp.part = 0 : i64}, %b: tensor<f32> {jaxpp.part = 0 : i64}, %c: tensor<f32> {jaxpp.part = 1 : i64}) -> (tensor<f32> {jaxpp.part = 0 : i64}, tensor<f32> {jaxpp.part = 1 : i64}) attributes {jaxpp.kind = "forward+backward"} {
    %0 = stablehlo.add %a, %b : tensor<f32>
    %1 = stablehlo.multiply %a, %c : tensor<f32>
    return %0, %1 : tensor<f32>, tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}
