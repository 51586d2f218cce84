// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,verify-loop | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir -p inline-calls,find-microbatch-loop,assign-stages,verify-loop | filecheck %s

// The step of a GPT, on submeshes of one device and of two, keeps the promises of its phase, and stays as it is.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.optimization_barrier {{.*}}jaxpp.task = "forward_1"
