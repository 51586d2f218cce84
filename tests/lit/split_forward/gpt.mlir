// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p "inline-calls,find-microbatch-loop{schedule=%S/../Inputs/recompute.txt},assign-stages,split-accumulators,place-residuals,outline-stages,split-backward,split-forward" | filecheck %s

// The step of a GPT under 1F1B that recomputes both stages. Stage 0 hands on its output, and makes 13 residuals again. Of
// stage 1's forward nobody needs anything but its residuals: the loss is made in the backward.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(
// CHECK:           %[[F0:.*]] = func.call @forward_0(
// CHECK-NEXT:      %[[R0:.*]]:13 = func.call @recompute_0(
// CHECK-NEXT:      %[[R1:.*]]:14 = func.call @recompute_1(%[[F0]],
// CHECK-NEXT:      %[[B1:.*]]:7 = func.call @backward_1({{.*}}%[[R1]]#
// CHECK-NEXT:      %[[B0:.*]]:6 = func.call @backward_0({{.*}}%[[R0]]#
// CHECK-NOT:     @forward_1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-COUNT-6: stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general
// CHECK-LABEL: func.func private @recompute_0(
// CHECK-COUNT-5: stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general
// CHECK-LABEL: func.func private @recompute_1(
// CHECK-COUNT-6: stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general
