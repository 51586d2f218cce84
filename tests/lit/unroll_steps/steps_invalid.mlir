// RUN: not jaxpp-opt %s --split-input-file -p unroll-steps 2>&1 | filecheck %s

// CHECK: error: unknown form of jaxpp.train_loop: {steps = 0 : i64}
// CHECK-NEXT: it is a dictionary: {steps = 2 : i64, state = 4 : i64, delay = 0 : i64, schedule = ""}
module attributes {jaxpp.meshes = 1 : i64, jaxpp.train_loop = {steps = 0 : i64}} {
  func.func public @main() {
    return
  }
}

// -----

// Gradients of the weights as they are now, in a schedule with a delay: the second forward stands before their update.

// CHECK: steps_invalid.mlir:[[# @LINE + 7]]:10: error: the forward of stage 0 for microbatch 0 of step 1 reads what the update of step 0 makes of the backward of stage 0 for microbatch 0 of step 0, which the schedule runs later
// CHECK-NEXT: with a delay take gradients of the older weights, the step's third argument
module attributes {jaxpp.meshes = 1 : i64, jaxpp.train_loop = {steps = 2 : i64, state = 2 : i64, delay = 1 : i64,
    schedule = "schedule: gpipe\0Aplacement: 0\0Akind optimizer: backward|weight_grad; time 0.001\0Akind forward: forward@-1 forward~-1 ?optimizer#-2\0Amesh 0: 0F0 0F1 0B0 0optimizer0 0B1 0optimizer1\0A"}} {
  func.func public @main(%w: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, %v: tensor<4xf32> {jaxpp.meshes = array<i64: 0>},
      %x: tensor<4xf32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, tensor<4xf32> {jaxpp.meshes = array<i64: 0>}) {
    %a = call @forward_0(%x, %w) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %g = call @backward_0(%a) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %u = call @after_0(%w, %g) {jaxpp.mesh = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %u, %w : tensor<4xf32>, tensor<4xf32>
  }
  func.func private @forward_0(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    return %a : tensor<4xf32>
  }
  func.func private @backward_0(%a: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %g = stablehlo.cosine %a : tensor<4xf32>
    return %g : tensor<4xf32>
  }
  func.func private @after_0(%w: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "after"} {
    %v = stablehlo.subtract %w, %g : tensor<4xf32>
    return %v : tensor<4xf32>
  }
}

// -----

// A schedule of other steps than the loop has.

// CHECK: steps_invalid.mlir: error: the schedule of jaxpp.train_loop has 2 microbatches, expected 3: 1 in each of 3 steps
// CHECK-NEXT: give a schedule of all steps, or none
module attributes {jaxpp.meshes = 1 : i64, jaxpp.train_loop = {steps = 3 : i64, state = 2 : i64, delay = 1 : i64,
    schedule = "schedule: gpipe\0Aplacement: 0\0Akind optimizer: backward|weight_grad; time 0.001\0Akind forward: forward@-1 forward~-1 ?optimizer#-2\0Amesh 0: 0F0 0F1 0B0 0optimizer0 0B1 0optimizer1\0A"}} {
  func.func public @main(%w: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, %v: tensor<4xf32> {jaxpp.meshes = array<i64: 0>},
      %x: tensor<4xf32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, tensor<4xf32> {jaxpp.meshes = array<i64: 0>}) {
    %a = call @forward_0(%x, %w) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %g = call @backward_0(%a) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %u = call @after_0(%w, %g) {jaxpp.mesh = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %u, %w : tensor<4xf32>, tensor<4xf32>
  }
  func.func private @forward_0(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    return %a : tensor<4xf32>
  }
  func.func private @backward_0(%a: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %g = stablehlo.cosine %a : tensor<4xf32>
    return %g : tensor<4xf32>
  }
  func.func private @after_0(%w: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "after"} {
    %v = stablehlo.subtract %w, %g : tensor<4xf32>
    return %v : tensor<4xf32>
  }
}

// -----

// CHECK: steps_invalid.mlir:[[# @LINE + 4]]:10: error: a stablehlo.cosine on no mesh
// CHECK-NEXT: run infer-placement first
module attributes {jaxpp.meshes = 1 : i64, jaxpp.train_loop = {steps = 2 : i64, state = 1 : i64, delay = 0 : i64, schedule = ""}} {
  func.func public @main(%w: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<4xf32> {jaxpp.meshes = array<i64: 0>}) {
    %v = stablehlo.cosine %w : tensor<4xf32>
    return %v : tensor<4xf32>
  }
}
