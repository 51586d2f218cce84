// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals,outline-stages,unroll-microbatches,infer-placement,insert-transfers,plan-buffers | filecheck %s

// A GPT of two stages has no two equal ones: the first embeds, the second has the loss. All functions stay, each of one
// stage. What both meshes run, the counters, was one function from the start.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-COUNT-8: = call @{{(forward|backward)_0\(.*}}jaxpp.stage = 0 : i64}
// CHECK:         = call @after_0_1({{.*}}) {jaxpp.mesh = 0 : i64}
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-COUNT-8: = call @{{(forward|backward)_1\(.*}}jaxpp.stage = 1 : i64}
// CHECK:         = call @after_0_1({{.*}}) {jaxpp.mesh = 1 : i64}
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-LABEL: func.func private @forward_1(
// CHECK-SAME:      attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
