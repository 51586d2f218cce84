// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p "inline-calls,find-microbatch-loop{schedule=zb-h1 meshes=2},assign-stages,split-accumulators,place-residuals,outline-stages,split-backward" | filecheck %s

// The step of a GPT under a schedule that splits. An input gradient has the products through which the gradient goes back:
// for a block one with each of its four weights, and four of its attention; stage 1 makes and differentiates the logits
// too. A weight gradient has one product per weight, reads their inputs and the gradients of their outputs, and makes no
// other again. The embedding is tied: stage 0 adds the gradient of its lookup to the same sum.

// CHECK-LABEL: func.func public @main(
// CHECK:           stablehlo.while(
// CHECK:             %[[F0:.*]]:14 = func.call @forward_0(
// CHECK-NEXT:        %[[F1:.*]]:14 = func.call @forward_1(%[[F0]]#13,
// CHECK-NEXT:        %[[I1:.*]]:11 = func.call @input_grad_1({{.*}}) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:        %[[W1:.*]]:5 = func.call @weight_grad_1(%[[I1]]#{{.*}}) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:        %[[I0:.*]]:7 = func.call @input_grad_0({{.*}}, %[[I1]]#0, {{.*}}) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:        %[[W0:.*]]:6 = func.call @weight_grad_0({{.*}}, %[[I0]]#{{.*}}, %[[W1]]#4) {jaxpp.stage = 0 : i64}
// CHECK-LABEL: func.func private @input_grad_1(
// CHECK-COUNT-10: stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general
// CHECK-LABEL: func.func private @weight_grad_1(
// CHECK-COUNT-5: stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general
// CHECK-LABEL: func.func private @input_grad_0(
// CHECK-COUNT-8: stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general
// CHECK-LABEL: func.func private @weight_grad_0(
// CHECK-COUNT-4: stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general
// CHECK:         "stablehlo.scatter"
