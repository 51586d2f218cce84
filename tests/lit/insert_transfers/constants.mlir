// RUN: jaxpp-opt %s --split-input-file -p insert-transfers | filecheck %s

// A constant (the microbatch index) that both meshes use is made on both, before its first use; one that nobody uses is
// gone.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[A]], %[[C1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[T_2:.*]] = "stablehlo.send"(%[[F0_1]], %[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    return
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      ) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[R:.*]]:2 = "stablehlo.recv"(%[[T]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:    %[[F1_1:.*]] = call @forward_1(%[[R]]#0, %[[C1]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    return %[[F1_1]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}) {
    %unused = stablehlo.constant dense<7> : tensor<i32>
    %i = stablehlo.constant dense<1> : tensor<i32>
    %1 = call @forward_0(%x, %i) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<i32>) -> tensor<f32>
    %2 = call @forward_1(%1, %i) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<i32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.convert %b : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.multiply %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32>, %b: tensor<i32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.convert %b : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.multiply %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// A result may be a constant; it is made where the result is.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[A]], %[[A]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[F0_0]]
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      ) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[C1:.*]] = stablehlo.constant dense<1.000000e+00>
// CHECK-NEXT:    return %[[C1]]
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %c = stablehlo.constant dense<1.0> : tensor<f32>
    %1 = call @forward_0(%x, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %c, %1 : tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
}
