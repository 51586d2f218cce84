// RUN: not jaxpp-opt %s --split-input-file -p once-per-run 2>&1 | filecheck %s

// CHECK: error: an operation with jaxpp.per_run reduces no sum over tasks: result 0 of @backward_0 does not only add to an argument
// CHECK-NEXT: delay-reductions with scatter-gradients=chunk makes such sums
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<2x4xf32>) -> tensor<4xf32> {
    %a = call @backward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %r = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0] {jaxpp.per_run} : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %r : tensor<4xf32>
  }
  func.func private @backward_0(%x: tensor<2x4xf32>) -> tensor<2x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %y = stablehlo.tanh %x : tensor<2x4xf32>
    return %y : tensor<2x4xf32>
  }
}

// -----

// CHECK: error: an operation with jaxpp.per_run reduces no sum over tasks: it adds one sum twice
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<2x4xf32>) -> tensor<4xf32> {
    %zeros = stablehlo.constant dense<0.0> : tensor<2x4xf32>
    %a = call @backward_0(%x, %zeros) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %b = stablehlo.add %a, %a : tensor<2x4xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %r = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [0] {jaxpp.per_run} : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %r : tensor<4xf32>
  }
  func.func private @backward_0(%x: tensor<2x4xf32>, %sum: tensor<2x4xf32>) -> tensor<2x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %y = stablehlo.negate %x : tensor<2x4xf32>
    %s = stablehlo.add %sum, %y : tensor<2x4xf32>
    return %s : tensor<2x4xf32>
  }
}

// -----

// CHECK: error: an operation with jaxpp.per_run reduces no sum over tasks: it adds up more than sums over tasks
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @main(%x: tensor<2x4xf32>) -> tensor<4xf32> {
    %zeros = stablehlo.constant dense<0.0> : tensor<2x4xf32>
    %a = call @backward_0(%x, %zeros) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %b = stablehlo.add %a, %x : tensor<2x4xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %r = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [0] {jaxpp.per_run} : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %r : tensor<4xf32>
  }
  func.func private @backward_0(%x: tensor<2x4xf32>, %sum: tensor<2x4xf32>) -> tensor<2x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %y = stablehlo.negate %x : tensor<2x4xf32>
    %s = stablehlo.add %sum, %y : tensor<2x4xf32>
    return %s : tensor<2x4xf32>
  }
}
