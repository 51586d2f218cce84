// RUN: jaxpp-opt %S/../Inputs/gpt_units.mlir -p "inline-calls,find-microbatch-loop{schedule=dualpipe meshes=2},hoist-loop-invariants,assign-stages,split-accumulators,propagate-shardings,delay-reductions,place-residuals,outline-stages,split-backward,unroll-microbatches,weave-units" | filecheck %s

// The step of a GPT under DualPipe, with attention and MLP as units and heads and hidden units on two devices each. In the task
// that is a forward and a backward, the forward's MLP begins beside the sum of the backward's MLP, whose product waits for
// the sum of the forward's attention; the backward's attention begins beside the sum of the forward's MLP. Elsewhere the marks
// are gone.

// CHECK-NOT:   stablehlo.optimization_barrier
// CHECK-LABEL: func.func private @forward_1_backward_0(
// CHECK:         %[[FIRST:.*]] = stablehlo.dot_general {{.*}} -> tensor<2x4x8xf32>
// CHECK:         %[[X:.*]] = stablehlo.add %{{.*}}, %[[FIRST]] {{.*}} : tensor<2x4x8xf32>
// CHECK:         %[[F:.*]]:2 = stablehlo.optimization_barrier {{{.*}}} %{{.*}}, %[[DH:.*]] : tensor<2x4x8xf32>, tensor<2x4x16xf32>
// CHECK-NEXT:    stablehlo.dot_general %[[F]]#1, {{.*}} -> tensor<2x4x8xf32>
// CHECK:         %[[B:.*]]:2 = stablehlo.optimization_barrier {{{.*}}} %{{.*}}, %{{.*}} : tensor<2x4x8xf32>, tensor<2x4x16xf32>
// CHECK-NEXT:    stablehlo.dot_general %[[B]]#1, {{.*}} -> tensor<2x4x8xf32>
// CHECK:         stablehlo.dot_general %[[B]]#0,
// CHECK-NOT:     stablehlo.optimization_barrier
