// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p "inline-calls,find-microbatch-loop{schedule=dualpipe meshes=2},assign-stages,split-accumulators,place-residuals,outline-stages,split-backward,unroll-microbatches" | filecheck %s

// The step of a GPT under DualPipe, whose two meshes hold both stages. Each mesh runs one forward together with a backward,
// as one program with the products of both: 6 of the forward, 12 of the backward. The schedule splits the last backward of
// stage 0 on each mesh; all others are whole, and stage 1 has no halves any more.

// CHECK-LABEL: func.func public @main(
// CHECK:         call @forward_1({{.*}}) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK:         call @backward_1({{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 2 : i64, jaxpp.stage = 1 : i64}
// CHECK:         call @backward_1({{.*}}) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK:         %[[FB:.*]]:20 = call @forward_1_backward_0({{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = array<i64: 3, 0>, jaxpp.stage = array<i64: 1, 0>}
// CHECK:         call @forward_1_backward_0({{.*}}) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = array<i64: 1, 2>, jaxpp.stage = array<i64: 1, 0>}
// CHECK:         call @backward_1({{.*}}%[[FB]]#{{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 3 : i64, jaxpp.stage = 1 : i64}
// CHECK:         %[[I:.*]]:7 = call @input_grad_0({{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK:         call @weight_grad_0({{.*}}%[[I]]#{{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-LABEL: func.func private @forward_0(
// CHECK-LABEL: func.func private @forward_1(
// CHECK-LABEL: func.func private @backward_1(
// CHECK-COUNT-15: stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general
// CHECK-LABEL: func.func private @input_grad_0(
// CHECK-LABEL: func.func private @weight_grad_0(
// CHECK-NOT:   func.func private
// CHECK-LABEL: func.func private @forward_1_backward_0(
// CHECK-SAME:      attributes {jaxpp.kind = "forward+backward"}
// CHECK-COUNT-18: stablehlo.dot_general
// CHECK-NOT:     stablehlo.dot_general
