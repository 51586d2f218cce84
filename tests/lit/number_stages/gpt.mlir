// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p "inline-calls,find-microbatch-loop{schedule=1f1b meshes=1},unroll-loops,number-stages{cuts=2}" | filecheck %s

// Both blocks of a GPT as one stage: of each pair of marks the last one stays, in the forward and in the backward.

// CHECK:         stablehlo.while
// CHECK:           jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}
// CHECK-NOT:       phase = "forward"
// CHECK:           jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}
// CHECK-NOT:       phase =
