// RUN: not jaxpp-opt %s -p "verify-program{memory-limit=7}" 2>&1 | filecheck %s
// RUN: not jaxpp-opt %s -p "verify-program{memory-limit=\"7 8\"}" 2>&1 | filecheck %s
// RUN: not jaxpp-opt %s -p "verify-program{memory-limit=much}" 2>&1 | filecheck %s --check-prefix=NUMBER
// RUN: not jaxpp-opt %s -p "verify-program{memory-limit=\"7B 8GiB\"}" 2>&1 | filecheck %s
// RUN: jaxpp-opt %s -p "verify-program{memory-limit=8B}" | filecheck %s --check-prefix=ENOUGH
// RUN: jaxpp-opt %s -p "verify-program{memory-limit=\"8 8 1\"}" | filecheck %s --check-prefix=ENOUGH

// The first mesh needs 8 bytes at its peak: an argument and what is made of it. On the second what is made takes the buffer
// of what arrived. The third of three limits is one of a mesh that the schedule leaves idle.

// CHECK: error: mesh 0 needs 8 bytes on each device, its memory limit is 7
// CHECK-NEXT: keep less (recompute='inputs', schedules.offload), or give the step smaller microbatches

// NUMBER: pass 'verify-program': memory_limit is 'much', expected bytes: a number above 0, such as 4096 or 70GiB, or one for each mesh

// ENOUGH: jaxpp.bytes = {peak = 8 : i64}
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %a = call @forward_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %t1 = "stablehlo.send"(%a, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> {jaxpp.last_use = array<i64: 0>} : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %b:2 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    %c = call @forward_1(%b#0) {jaxpp.mesh = 1 : i64, jaxpp.last_use = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @forward_1(%a: tensor<f32> {tf.aliasing_output = 0 : i32}) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

