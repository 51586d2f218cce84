// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,unroll-loops,forward-rows,number-stages,hoist-loop-invariants | filecheck %s

// The rows that this GPT gathers are those of its tokens, which are known when it runs only: they stay.

// CHECK:         func.func public @main(
// CHECK:         stablehlo.while
// CHECK:           "stablehlo.gather"
