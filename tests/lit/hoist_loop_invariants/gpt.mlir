// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,hoist-loop-invariants | filecheck %s

// The step of a GPT in float32 computes only masks and positions of invariants, which stay in the loop.

// CHECK-LABEL: func.func public @main(
// CHECK-NOT:     stablehlo.{{(compare|iota|select|dot_general|convert)}}
// CHECK:         stablehlo.while({{.*}}jaxpp.microbatch_loop
// CHECK:           stablehlo.iota
// CHECK:           stablehlo.compare
