// RUN: jaxpp-opt %S/../Inputs/gpt_units.mlir -p "inline-calls,find-microbatch-loop{schedule=dualpipe meshes=2},hoist-loop-invariants,assign-stages,split-accumulators,propagate-shardings,delay-reductions{gather-weights=chunk},place-residuals,outline-stages,split-backward,unroll-microbatches,once-per-run" | filecheck %s

// The step of a GPT with weights sharded over the axis of the batch. DualPipe has both stages on both meshes. Mesh 0 gathers the
// four weights of stage 0 for its first forward, and again for the second one, as the forward of stage 1 stands between them.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[G:.*]]:4 = call @gather_0({{.*}}) {jaxpp.mesh = 0 : i64}
// CHECK:         call @forward_0({{.*}}%[[G]]#0, {{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0
// CHECK:         %[[H:.*]]:4 = call @gather_1({{.*}}) {jaxpp.mesh = 0 : i64}
// CHECK:         call @forward_1({{.*}}%[[H]]#0, {{.*}}) {jaxpp.mesh = 0 : i64
// CHECK:         %[[AGAIN:.*]]:4 = call @gather_0({{.*}}) {jaxpp.mesh = 0 : i64}
// CHECK:         call @forward_0({{.*}}%[[AGAIN]]#0, {{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1
// CHECK-LABEL: func.func private @gather_0(
// CHECK-COUNT-4: sdy.sharding_constraint
// CHECK-NOT:     sdy.sharding_constraint
// CHECK:         return
