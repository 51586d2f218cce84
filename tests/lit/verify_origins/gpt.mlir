// RUN: jaxpp-opt %S/../Inputs/gpt.mlir --pipeline mpmd | jaxpp-opt - -p verify-origins | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir --pipeline mpmd | jaxpp-opt - -p verify-origins | filecheck %s

// In the program of a GPT each task reads values of its own microbatch, or sums, and it stays as it is.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK:         call @forward_0(
// CHECK-LABEL: func.func public @mesh_1(
