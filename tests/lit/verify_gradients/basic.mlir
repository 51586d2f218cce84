// RUN: jaxpp-opt %s --split-input-file -p verify-gradients | filecheck %s

// A sum over all microbatches of a stage leaves the step.

// CHECK: call @backward_0
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x0: tensor<4xf32>, %x1: tensor<4xf32>, %x2: tensor<4xf32>) -> (tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %s0 = call @backward_0(%x0, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s1 = call @backward_0(%x1, %s0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s2 = call @backward_0(%x2, %s1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %s2 : tensor<4xf32>
}
func.func private @backward_0(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %g = stablehlo.tanh %x : tensor<4xf32>
  %n = stablehlo.add %sum, %g : tensor<4xf32>
  return %n : tensor<4xf32>
}
}

// -----

// Two stages share a weight, and their parts are added once. One of them is summed in parts on two meshes.

// CHECK: stablehlo.add
// CHECK: stablehlo.add
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x0: tensor<4xf32>, %x1: tensor<4xf32>, %x2: tensor<4xf32>) -> (tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %a0 = call @backward_0(%x0, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %a1 = call @backward_0(%x1, %zero) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %a2 = call @backward_0(%x2, %a0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %b0 = call @backward_1(%x0, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %b1 = call @backward_1(%x1, %b0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %b2 = call @backward_1(%x2, %b1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 1 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %a = stablehlo.add %a2, %a1 : tensor<4xf32>
  %all = stablehlo.add %a, %b2 : tensor<4xf32>
  return %all : tensor<4xf32>
}
func.func private @backward_0(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %g = stablehlo.tanh %x : tensor<4xf32>
  %n = stablehlo.add %sum, %g : tensor<4xf32>
  return %n : tensor<4xf32>
}
func.func private @backward_1(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %g = stablehlo.tanh %x : tensor<4xf32>
  %n = stablehlo.add %sum, %g : tensor<4xf32>
  return %n : tensor<4xf32>
}
}

// -----

// A moving average is no sum: its terms have different factors. Nor is a value of the last microbatch.

// CHECK: call @backward_0
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x0: tensor<4xf32>, %x1: tensor<4xf32>, %x2: tensor<4xf32>) -> (tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %s0 = call @backward_0(%x0, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s1 = call @backward_0(%x1, %s0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s2 = call @backward_0(%x2, %s1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %s2 : tensor<4xf32>
}
func.func private @backward_0(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %decay = stablehlo.constant dense<0.5> : tensor<4xf32>
  %g = stablehlo.tanh %x : tensor<4xf32>
  %d = stablehlo.multiply %sum, %decay : tensor<4xf32>
  %n = stablehlo.add %d, %g : tensor<4xf32>
  return %n : tensor<4xf32>
}
}

// -----

// CHECK: call @backward_0
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x0: tensor<4xf32>, %x1: tensor<4xf32>, %x2: tensor<4xf32>) -> (tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %s0 = call @backward_0(%x0, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s1 = call @backward_0(%x1, %s0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s2 = call @backward_0(%x2, %s1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %s2 : tensor<4xf32>
}
func.func private @backward_0(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %g = stablehlo.tanh %x : tensor<4xf32>
  %n = stablehlo.maximum %sum, %g : tensor<4xf32>
  return %n : tensor<4xf32>
}
}

// -----

// A value of the last microbatch is added to the sum over all of them, and may have another factor.

// CHECK: call @backward_0
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x0: tensor<4xf32>, %x1: tensor<4xf32>, %x2: tensor<4xf32>) -> (tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %three = stablehlo.constant dense<3.0> : tensor<4xf32>
  %s0:2 = call @backward_0(%x0, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %s1:2 = call @backward_0(%x1, %s0#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %s2:2 = call @backward_0(%x2, %s1#0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %last = stablehlo.multiply %s2#1, %three : tensor<4xf32>
  %all = stablehlo.add %s2#0, %last : tensor<4xf32>
  return %all : tensor<4xf32>
}
func.func private @backward_0(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %g = stablehlo.tanh %x : tensor<4xf32>
  %n = stablehlo.add %sum, %g : tensor<4xf32>
  return %n, %g : tensor<4xf32>, tensor<4xf32>
}
}
