// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,verify-loop,place-residuals,outline-stages,verify-loop | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir -p inline-calls,find-microbatch-loop,assign-stages,verify-loop,place-residuals,outline-stages,verify-loop | filecheck %s

// The step of a GPT, on submeshes of one device and of two, keeps the promises of phases 2 and 3, and stays as it is.

// CHECK-LABEL: func.func public @main(
// CHECK:         func.call @forward_0(
