// RUN: jaxpp-opt %s -p "find-microbatch-loop{schedule=interleaved-1f1b meshes=2},assign-stages,split-stacks" | filecheck %s
// RUN: jaxpp-opt %s --pipeline mpmd --schedule interleaved-1f1b --meshes 2 | filecheck %s --check-prefix=PROGRAM

// Interleaved, mesh 0 has the stages 0 and 2, but the rows 0 and 1: it takes row 0 out of its block in the loop. The rows 1
// and 2, of the other mesh's stages, are taken before the loop, and sent once per step.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[W0:.*]] = stablehlo.slice %arg0 [0:2, 0:4]
// CHECK-NEXT:    %[[W1:.*]] = stablehlo.slice %arg0 [2:4, 0:4]
// CHECK:         %[[R1:.*]] = stablehlo.slice %[[W0]] [1:2, 0:4]
// CHECK-NEXT:    %[[R2:.*]] = stablehlo.slice %[[W1]] [0:1, 0:4]
// CHECK-NEXT:    stablehlo.while
// CHECK:           %[[R0:.*]] = stablehlo.slice %[[W0]] [0:1, 0:4]
// CHECK-NEXT:      stablehlo.multiply %[[R0]],
// CHECK:           stablehlo.multiply %[[R1]],
// CHECK:           stablehlo.multiply %[[R2]],
// CHECK:           %[[R3:.*]] = stablehlo.slice %[[W1]] [1:2, 0:4]
// CHECK-NEXT:      stablehlo.multiply %[[R3]],

// PROGRAM-LABEL: func.func public @mesh_0(
// PROGRAM:         %[[ROW:.*]] = call @before_0(%{{[^ ]*}}) {jaxpp.mesh = 0 : i64} : (tensor<2x4xf32>) -> tensor<1x4xf32>
// PROGRAM-NEXT:    "stablehlo.send"(%[[ROW]]
// PROGRAM:         "stablehlo.recv"
func.func public @main(%w: tensor<4x4xf32>, %x: tensor<1x4xf32>) -> (tensor<1x4xf32>) {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<1x4xf32>
  %0:2 = stablehlo.while(%i = %c0, %s = %zero) : tensor<i32>, tensor<1x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r0 = stablehlo.slice %w [0:1, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g0 = stablehlo.multiply %r0, %x : tensor<1x4xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %g0 : tensor<1x4xf32>
    %r1 = stablehlo.slice %w [1:2, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g1 = stablehlo.multiply %r1, %m0 : tensor<1x4xf32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %g1 : tensor<1x4xf32>
    %r2 = stablehlo.slice %w [2:3, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g2 = stablehlo.multiply %r2, %m1 : tensor<1x4xf32>
    %m2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 2 : i64, phase = "forward", name = ""}} %g2 : tensor<1x4xf32>
    %r3 = stablehlo.slice %w [3:4, 0:4] : (tensor<4x4xf32>) -> tensor<1x4xf32>
    %g3 = stablehlo.multiply %r3, %m2 : tensor<1x4xf32>
    %last = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 3 : i64, phase = "forward", name = ""}} %g3 : tensor<1x4xf32>
    %t = stablehlo.add %s, %last : tensor<1x4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<1x4xf32>
  }
  return %0#1 : tensor<1x4xf32>
}
