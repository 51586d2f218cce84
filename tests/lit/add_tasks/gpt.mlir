// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p "inline-calls,find-microbatch-loop{schedule=%S/../Inputs/offload.txt},assign-stages,split-accumulators,place-residuals,outline-stages,split-backward,add-tasks" | filecheck %s

// The step of a GPT under 1F1B that offloads what it may: stage 0's residuals, and not its output, which only stage 1
// reads. Stage 1 runs each backward right after its forward: there is nothing to offload.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(
// CHECK:           %[[F0:.*]]:14 = func.call @forward_0(
// CHECK-NEXT:      %[[H0:.*]]:13 = func.call @offload_0(
// CHECK-NEXT:      %[[F1:.*]]:14 = func.call @forward_1(%[[F0]]#13,
// CHECK-NEXT:      %[[B1:.*]]:7 = func.call @backward_1({{.*}}%[[F1]]#
// CHECK-NEXT:      %[[R0:.*]]:13 = func.call @reload_0(%[[H0]]#0,
// CHECK-NEXT:      %[[B0:.*]]:6 = func.call @backward_0({{.*}}%[[R0]]#
// CHECK-NOT:     @offload_1
