// RUN: jaxpp-opt %S/../Inputs/gpt_units.mlir -p "inline-calls,find-microbatch-loop{schedule=dualpipe meshes=2},hoist-loop-invariants,assign-stages,split-accumulators,propagate-shardings,delay-reductions{scatter-gradients=chunk},place-residuals,outline-stages,split-backward,unroll-microbatches,once-per-run" | filecheck %s

// The step of a GPT with weights sharded over the axis of the batch. DualPipe has both stages on both meshes. Mesh 0 begins a run of
// stage 1 with its first backward, which the backward beside its second forward is no end of: that is a task of stage 1 too. Its
// last weight gradient of stage 0 is a run of its own.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[Z:.*]]:4 = call @zeros_0() {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[B:.*]]:7 = call @backward_1({{.*}}%[[Z]]#0, {{.*}}) {jaxpp.mesh = 0 : i64
// CHECK:         %[[Y:.*]]:4 = call @zeros_1() {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[C:.*]]:19 = call @forward_1_backward_0({{.*}}%[[Y]]#0, {{.*}}) {
// CHECK-NEXT:    %[[S:.*]]:4 = call @scatter_0(%[[C]]#14, %[[C]]#15, %[[C]]#16, %[[C]]#17) {jaxpp.mesh = 0 : i64}
// CHECK:         %[[D:.*]]:7 = call @backward_1({{.*}}%[[B]]#2, {{.*}}) {jaxpp.mesh = 0 : i64
// CHECK-NEXT:    call @scatter_1(%[[D]]#2, %[[D]]#3, %[[D]]#4, %[[D]]#5) {jaxpp.mesh = 0 : i64}
// CHECK:         %[[E:.*]]:5 = call @weight_grad_0(
// CHECK-NEXT:    call @scatter_2(%[[E]]#0, %[[E]]#1, %[[E]]#2, %[[E]]#3, %[[S]]#0, %[[S]]#1, %[[S]]#2, %[[S]]#3) {jaxpp.mesh = 0 : i64}
// CHECK-LABEL: func.func private @scatter_2(
// CHECK-COUNT-4: stablehlo.reduce
// CHECK-NOT:     stablehlo.reduce
// CHECK:         return
