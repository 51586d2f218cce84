// RUN: jaxpp-opt %s -p "find-microbatch-loop{schedule=gpipe meshes=3},assign-stages,place-residuals,outline-stages,unroll-microbatches,infer-placement,insert-transfers,plan-buffers,verify-program" | filecheck %s --check-prefix=GPIPE
// RUN: jaxpp-opt %s -p "find-microbatch-loop{schedule=1f1b meshes=3},assign-stages,place-residuals,outline-stages,unroll-microbatches,infer-placement,insert-transfers,plan-buffers,verify-program" | filecheck %s --check-prefix=ONE

// Three stages, four microbatches. Under GPipe the residuals of all four microbatches wait on each mesh for their
// backwards. Under 1F1B it is one more than there are stages behind: three on mesh 0, two on mesh 1, one on mesh 2.

// GPIPE-LABEL: func.func public @mesh_0(
// GPIPE-SAME:      jaxpp.peak_activations = 4 : i64
// GPIPE-LABEL: func.func public @mesh_1(
// GPIPE-SAME:      jaxpp.peak_activations = 4 : i64
// GPIPE-LABEL: func.func public @mesh_2(
// GPIPE-SAME:      jaxpp.peak_activations = 4 : i64

// ONE-LABEL: func.func public @mesh_0(
// ONE-SAME:      jaxpp.peak_activations = 3 : i64
// ONE-LABEL: func.func public @mesh_1(
// ONE-SAME:      jaxpp.peak_activations = 2 : i64
// ONE-LABEL: func.func public @mesh_2(
// ONE-SAME:      jaxpp.peak_activations = 1 : i64
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %first, %loss = %zero, %g = %zero) : tensor<i32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 4 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<4> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %h0 = stablehlo.multiply %x, %w : tensor<f32>
    %a0 = stablehlo.tanh %h0 : tensor<f32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a0 : tensor<f32>
    %h1 = stablehlo.multiply %m0, %w : tensor<f32>
    %a1 = stablehlo.tanh %h1 : tensor<f32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %a1 : tensor<f32>
    %h2 = stablehlo.multiply %m1, %w : tensor<f32>
    %a2 = stablehlo.tanh %h2 : tensor<f32>
    %m2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 2 : i64, phase = "forward", name = ""}} %a2 : tensor<f32>
    %losses = stablehlo.add %loss, %m2 : tensor<f32>
    %d2 = stablehlo.power %m2, %m1 : tensor<f32>
    %n2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "backward", name = ""}} %d2 : tensor<f32>
    %d1 = stablehlo.power %n2, %m0 : tensor<f32>
    %n1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d1 : tensor<f32>
    %d0 = stablehlo.power %n1, %a0 : tensor<f32>
    %sum = stablehlo.add %g, %d0 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %losses, %sum : tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<f32>, tensor<f32>
}
