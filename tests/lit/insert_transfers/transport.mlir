// RUN: jaxpp-opt %s -p insert-transfers | filecheck %s --check-prefixes=CHECK,PULL
// RUN: jaxpp-opt %s -p "insert-transfers{transport=pair}" | filecheck %s --check-prefixes=CHECK,PAIR
// RUN: jaxpp-opt %s -p "insert-transfers{transport=device_put},plan-buffers,verify-program{transport=device_put}" | filecheck %s --check-prefixes=CHECK,EARLY
// RUN: not jaxpp-opt %s -p "insert-transfers{transport=tcp}" 2>&1 | filecheck %s --check-prefix=NAME

// 1F1B: mesh 0 makes its second activation while mesh 1 still runs its first backward. The activation is on its way from
// then on, and the gradient when it is made: on both meshes in this order. Where receives are one task early, they are in
// front of the task that runs then. What is pulled is received when it is needed: behind the send.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK:         call @forward_0({{.*}}jaxpp.microbatch = 0
// CHECK-NEXT:    "stablehlo.send"({{.*}}dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    call @forward_0({{.*}}jaxpp.microbatch = 1
// CHECK-NEXT:    "stablehlo.send"({{.*}}dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    "stablehlo.recv"({{.*}}dense<{{\[\[}}1, 0]]>
// EARLY-NEXT:    "stablehlo.recv"({{.*}}dense<{{\[\[}}1, 0]]>
// CHECK-NEXT:    call @backward_0({{.*}}jaxpp.microbatch = 0
// PAIR-NEXT:     "stablehlo.recv"({{.*}}dense<{{\[\[}}1, 0]]>
// PULL-NEXT:     "stablehlo.recv"({{.*}}dense<{{\[\[}}1, 0]]>
// CHECK-NEXT:    call @backward_0({{.*}}jaxpp.microbatch = 1
// CHECK-LABEL: func.func public @mesh_1(
// CHECK:         "stablehlo.recv"({{.*}}dense<{{\[\[}}0, 1]]>
// EARLY-NEXT:    "stablehlo.recv"({{.*}}dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    call @backward_1({{.*}}jaxpp.microbatch = 0
// PAIR-NEXT:     "stablehlo.recv"({{.*}}dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    "stablehlo.send"({{.*}}dense<{{\[\[}}1, 0]]>
// PULL-NEXT:     "stablehlo.recv"({{.*}}dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    call @backward_1({{.*}}jaxpp.microbatch = 1
// CHECK-NEXT:    "stablehlo.send"({{.*}}dense<{{\[\[}}1, 0]]>
// CHECK-NEXT:    return

// NAME: jaxpp-opt: error: pass 'insert-transfers': transport is 'tcp', expected one of pull, device_put, pair
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %a0 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %a1 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %g0 = call @backward_1(%a0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %b0 = call @backward_0(%g0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %g1 = call @backward_1(%a1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %b1 = call @backward_0(%g1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    return
  }
  func.func private @forward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}
