// RUN: jaxpp-opt %S/../Inputs/gpt_experts.mlir -p "inline-calls,find-microbatch-loop{schedule=dualpipe meshes=2},unroll-loops" | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt_experts.mlir --pipeline mpmd --schedule dualpipe --meshes 2 | filecheck %s --check-prefix=WOVEN
// RUN: jaxpp-opt %S/../Inputs/gpt_experts.mlir -p inline-calls,find-microbatch-loop,unroll-loops | filecheck %s --check-prefix=WHOLE

// The step of a GPT whose experts are in a shard_map: tokens go to the experts by one all-to-all, and back by another. Under
// DualPipe each stands between the marks of units, apart from the products. Two shard_maps before it each reshape a weight.

// CHECK-COUNT-2: sdy.manual_computation(
// CHECK:         %[[SENT:.*]] = sdy.manual_computation({{.*}} {
// CHECK-NEXT:      "stablehlo.all_to_all"
// CHECK-NEXT:      stablehlo.reshape
// CHECK-NEXT:      sdy.return
// CHECK-NEXT:    }
// CHECK-NEXT:    %[[INPUTS:.*]] = stablehlo.optimization_barrier {jaxpp.boundary} %[[SENT]]
// CHECK-NEXT:    sdy.manual_computation(%[[INPUTS]], {{.*}} {

// In the task that is a forward and a backward, units of the one wait for collectives of the other.

// WOVEN:         @forward_1_backward_0(
// WOVEN:         stablehlo.optimization_barrier
// WOVEN-NOT:     jaxpp.boundary{{[,}]}}

// Under 1F1B no unit is woven, and no backward split: each shard_map stays whole.

// WHOLE-COUNT-4: sdy.manual_computation
// WHOLE-NOT:     sdy.manual_computation
