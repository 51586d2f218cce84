// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,unroll-loops,number-stages | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt.mlir --pipeline mpmd | filecheck %s --check-prefix=PROGRAM

// The blocks of a GPT that are written one after the other stay as they are: there is no loop with marks inside.

// CHECK:         stablehlo.while
// CHECK-COUNT-2:   phase = "forward"
// CHECK-COUNT-2:   phase = "backward"
// CHECK-NOT:     stablehlo.concatenate %{{.*}}#

// PROGRAM:       func.func public @mesh_0(
// PROGRAM:       func.func public @mesh_1(
