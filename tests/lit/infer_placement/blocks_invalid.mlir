// RUN: not jaxpp-opt %s --split-input-file -p infer-placement 2>&1 | filecheck %s

// A stack in blocks is read by a slice for each block.

// CHECK: blocks_invalid.mlir:[[# @LINE + 4]]:10: error: stablehlo.tanh reads argument 0 of @main, which is stored in 2 blocks of rows, but not one of these
// CHECK-NEXT: leave jaxpp.blocks to split-stacks, which writes it with a slice for each block: run the whole pipeline
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w: tensor<4x2xf32> {jaxpp.blocks = array<i64: 0, 1>}) -> tensor<4x2xf32> {
    %0 = stablehlo.tanh %w : tensor<4x2xf32>
    return %0 : tensor<4x2xf32>
  }
}

// -----

// A single number has no blocks.

// CHECK: blocks_invalid.mlir:[[# @LINE + 4]]:10: error: stablehlo.tanh reads argument 0 of @main, which is stored in 2 blocks of rows
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w: tensor<f32> {jaxpp.blocks = array<i64: 0, 1>}) -> tensor<f32> {

    %0 = stablehlo.tanh %w : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// Each block has a mesh of its own.

// CHECK: error: jaxpp.blocks = array<i64: 1, 1>, expected another mesh for each block
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w: tensor<4x2xf32> {jaxpp.blocks = array<i64: 1, 1>}) -> tensor<4x2xf32> {
    return %w : tensor<4x2xf32>
  }
}

// -----

// A result in blocks is a concatenation of these.

// CHECK: error: result 0 of @main is no concatenation of 2 blocks, as jaxpp.blocks says
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%w: tensor<4x2xf32>) -> (tensor<4x2xf32> {jaxpp.blocks = array<i64: 0, 1>}) {
    %0 = stablehlo.tanh %w : tensor<4x2xf32>
    return %0 : tensor<4x2xf32>
  }
}
