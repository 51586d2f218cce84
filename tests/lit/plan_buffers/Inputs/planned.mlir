module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%w: tensor<f32> {jaxpp.number = 0 : i64}, %x: tensor<f32> {jaxpp.number = 1 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %1 = call @forward_0(%w, %x) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32> {tf.aliasing_output = 0 : i32}, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.add %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}
