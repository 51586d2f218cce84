// The forward of stage 1 is two calls, and it is recomputed. Until then neither what one of these calls hands to the
// other counts, nor what mesh 0 sends and the backward reads too: an input of the microbatch, and weights. Of two
// microbatches one is alive at once.

module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w: tensor<f32> {jaxpp.meshes = array<i64: 0>}, %x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.meshes = array<i64: 1>}) {
    %v = call @before(%w) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %a0 = call @forward_0(%w, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %b0 = call @own(%a0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %c0 = call @forward_1(%v, %b0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %a1 = call @forward_0(%w, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %b1 = call @own(%a1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %c1 = call @forward_1(%v, %b1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %r0 = call @recompute_1(%v) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %d0 = call @backward_1(%v, %a0, %r0, %a0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %r1 = call @recompute_1(%v) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %d1 = call @backward_1(%v, %a1, %r1, %a1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> tensor<f32>
    return %d0, %d1 : tensor<f32>, tensor<f32>
  }
  func.func private @before(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "before"} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @own(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @recompute_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "recompute", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_1(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    %1 = stablehlo.multiply %0, %c : tensor<f32>
    %2 = stablehlo.multiply %1, %d : tensor<f32>
    return %2 : tensor<f32>
  }
}
