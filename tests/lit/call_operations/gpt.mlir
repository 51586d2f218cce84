// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,split-accumulators,place-residuals,outline-stages,split-backward,call-operations | filecheck %s

// The step of a GPT whose schedule has no kinds of the user's own: the loop calls its tasks and nothing else.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(
// CHECK:           %[[F0:.*]]:14 = func.call @forward_0(
// CHECK-NEXT:      %[[F1:.*]]:14 = func.call @forward_1(%[[F0]]#13,
// CHECK-NEXT:      func.call @backward_1({{.*}}%[[F1]]#
// CHECK-NEXT:      func.call @backward_0(
// CHECK-NOT:       func.call
// CHECK:           stablehlo.return
