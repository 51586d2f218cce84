// RUN: jaxpp-opt %s -p verify-program | filecheck %s --check-prefix=PULL
// RUN: not jaxpp-opt %s -p "verify-program{transport=device_put}" 2>&1 | filecheck %s
// RUN: not jaxpp-opt %s -p "verify-program{transport=pair}" 2>&1 | filecheck %s
// RUN: not jaxpp-opt %s -p "verify-program{transport=tcp}" 2>&1 | filecheck %s --check-prefix=NAME

// Two sends face each other. That is fine where a send waits for nobody.

// PULL-LABEL: func.func public @mesh_1

// CHECK: transport_invalid.mlir:[[# @LINE + 11]]:12: error: deadlock: by the transport '{{(device_put|pair)}}' these meshes wait for one another
// CHECK-NEXT: mesh 0: the receive from mesh 1 of backward of stage 1, microbatch 0 (channel 1) comes after the send to mesh 1 of forward of stage 0, microbatch 1 (channel 0)
// CHECK-NEXT: mesh 1: the receive from mesh 0 of forward of stage 0, microbatch 1 (channel 0) comes after the send to mesh 0 of backward of stage 1, microbatch 0 (channel 1)
// CHECK-NEXT: run insert-transfers{transport={{device_put|pair}}

// NAME: jaxpp-opt: error: pass 'verify-program': transport is 'tcp', expected one of pull, device_put, pair
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    %b:2 = "stablehlo.recv"(%t1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    return %b#0 : tensor<f32>
  }
  func.func public @mesh_1(%y: tensor<f32> {jaxpp.number = 1 : i64}) -> (tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @backward_1(%y) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    %b:2 = "stablehlo.recv"(%t1) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    return %b#0 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}
