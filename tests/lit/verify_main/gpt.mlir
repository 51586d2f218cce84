// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals,outline-stages,unroll-microbatches,verify-main,infer-placement,verify-main | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals,outline-stages,unroll-microbatches,verify-main,infer-placement,verify-main | filecheck %s

// The step of a GPT, on submeshes of one device and of two, keeps the promises of phases 4 and 5, and stays as it is.

// CHECK-LABEL: func.func public @main(
// CHECK:         call @forward_0(
