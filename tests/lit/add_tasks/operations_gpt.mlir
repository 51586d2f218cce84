// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p "inline-calls,find-microbatch-loop{schedule=%S/../Inputs/operations.txt operations=tick,log:residuals},assign-stages,split-accumulators,place-residuals,outline-stages,split-backward,add-tasks" | filecheck %s

// Two kinds of the schedule are the user's. `log` asks for residuals: it takes what the backward of stage 0 reads of its
// forward, and not the output, which only stage 1 reads. `tick` asks for nothing.

// CHECK:       module @jit_train_step attributes {jaxpp.operations = {log = "residuals", tick = ""}
// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(
// CHECK:           %[[F0:.*]]:14 = func.call @forward_0(
// CHECK-NEXT:      func.call @tick_0() {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      func.call @log_0(%[[F0]]#0, %[[F0]]#1, {{.*}} %[[F0]]#12) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:      %[[F1:.*]]:14 = func.call @forward_1(%[[F0]]#13,
// CHECK-NEXT:      func.call @tick_1() {jaxpp.stage = 1 : i64}
// CHECK-NEXT:      func.call @backward_1(
// CHECK-LABEL: func.func private @log_0(
// CHECK-SAME:      attributes {jaxpp.kind = "log", jaxpp.stage = 0 : i64} {
// CHECK-NEXT:    return
