// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,unroll-loops,forward-rows,number-stages,assign-stages,split-stacks | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt.mlir --pipeline mpmd | filecheck %s --check-prefix=PROGRAM

// The blocks of this GPT have their own arrays, and its positions are read whole: nothing is a stack.

// CHECK:         func.func public @main(
// CHECK-NOT:     jaxpp.blocks

// PROGRAM:       func.func public @mesh_0(
// PROGRAM-NOT:   jaxpp.number = array
// PROGRAM:       func.func public @mesh_1(
