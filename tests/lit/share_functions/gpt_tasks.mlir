// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals,outline-stages,unroll-microbatches,infer-placement,share-functions{when=always} | filecheck %s

// A GPT of two stages, one with the embedding and one with the head: neither does all that the other does.

// CHECK-LABEL: func.func public @main(
// CHECK:         call @forward_0(
// CHECK:         call @forward_1(
// CHECK:         call @backward_1(
// CHECK:         call @backward_0(
// CHECK-NOT:   {{(forward|backward)_[0-9]}}_shared(
