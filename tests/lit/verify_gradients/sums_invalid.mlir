// RUN: not jaxpp-opt %s --split-input-file -p verify-gradients 2>&1 | filecheck %s

// A task goes on from zeros.

// CHECK: sums_invalid.mlir:[[# @LINE + 7]]:{{[0-9]+}}: error: a sum over 3 microbatches lacks what the backward of stage 0 adds for microbatch 0
// CHECK-NEXT: a pass before this one dropped a term of the sum, or added it in another way
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x0: tensor<4xf32>, %x1: tensor<4xf32>, %x2: tensor<4xf32>) -> (tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %s0 = call @backward_0(%x0, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s1 = call @backward_0(%x1, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
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

// The part of a mesh is added twice.

// CHECK: sums_invalid.mlir:[[# @LINE + 9]]:{{[0-9]+}}: error: a sum adds what the backward of stage 0, microbatch 1, 2 times, and others 1 times
// CHECK-NEXT: a pass before this one dropped a term of the sum, or added it in another way
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x0: tensor<4xf32>, %x1: tensor<4xf32>, %x2: tensor<4xf32>) -> (tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %s0 = call @backward_0(%x0, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s1 = call @backward_0(%x1, %zero) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s2 = call @backward_0(%x2, %s0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %a = stablehlo.add %s2, %s1 : tensor<4xf32>
  %b = stablehlo.add %a, %s1 : tensor<4xf32>
  return %b : tensor<4xf32>
}
func.func private @backward_0(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %g = stablehlo.tanh %x : tensor<4xf32>
  %n = stablehlo.add %sum, %g : tensor<4xf32>
  return %n : tensor<4xf32>
}
}

// -----

// A clip reads the part of one mesh.

// CHECK: sums_invalid.mlir:[[# @LINE + 8]]:{{[0-9]+}}: error: a sum over 3 microbatches lacks what the backward of stage 0 adds for microbatch 1
// CHECK-NEXT: a pass before this one dropped a term of the sum, or added it in another way
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x0: tensor<4xf32>, %x1: tensor<4xf32>, %x2: tensor<4xf32>) -> (tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %s0 = call @backward_0(%x0, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s1 = call @backward_0(%x1, %zero) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s2 = call @backward_0(%x2, %s0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %clip = stablehlo.tanh %s2 : tensor<4xf32>
  %all = stablehlo.add %clip, %s1 : tensor<4xf32>
  return %all : tensor<4xf32>
}
func.func private @backward_0(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %g = stablehlo.tanh %x : tensor<4xf32>
  %n = stablehlo.add %sum, %g : tensor<4xf32>
  return %n : tensor<4xf32>
}
}

// -----

// One microbatch runs another function, which takes a mean for a sum.

// CHECK: sums_invalid.mlir:[[# @LINE + 7]]:{{[0-9]+}}: error: a sum adds what the backward of stage 0, microbatch 1, 0.5 times, and others 1 times
// CHECK-NEXT: a pass before this one dropped a term of the sum, or added it in another way
module attributes {jaxpp.meshes = 2 : i64} {
func.func public @main(%x0: tensor<4xf32>, %x1: tensor<4xf32>, %x2: tensor<4xf32>) -> (tensor<4xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %s0 = call @backward_0(%x0, %zero) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s1 = call @halved(%x1, %s0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %s2 = call @backward_0(%x2, %s1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %s2 : tensor<4xf32>
}
func.func private @backward_0(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %g = stablehlo.tanh %x : tensor<4xf32>
  %n = stablehlo.add %sum, %g : tensor<4xf32>
  return %n : tensor<4xf32>
}
func.func private @halved(%x: tensor<4xf32>, %sum: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %two = stablehlo.constant dense<2.0> : tensor<4xf32>
  %g = stablehlo.tanh %x : tensor<4xf32>
  %h = stablehlo.divide %g, %two : tensor<4xf32>
  %n = stablehlo.add %sum, %h : tensor<4xf32>
  return %n : tensor<4xf32>
}
}
