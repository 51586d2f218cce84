// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals,outline-stages,unroll-microbatches,infer-placement,unroll-steps | filecheck %s

// A module that is the whole step stays as it is.

// CHECK-LABEL: func.func public @main(
// CHECK-NOT:     call @batch
// CHECK-NOT:     call @metrics
// CHECK:         jaxpp.microbatch = 3 :
// CHECK-NOT:     jaxpp.microbatch = 4 :
