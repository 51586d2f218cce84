// RUN: jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2},number-stages" | filecheck %s

// jax.checkpoint around the whole model: the backward would compute up to the mark again. Its users have the first mark's
// value, and what the barrier held is in a barrier of its own.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[M:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}}
// CHECK:           %[[Y:.*]] = stablehlo.sine %[[M]]
// CHECK:           %[[X:.*]] = stablehlo.optimization_barrier %{{[^ ,]*}} : tensor<4xf32>
// CHECK:           %[[G:.*]] = stablehlo.optimization_barrier %[[Y]] : tensor<4xf32>
// CHECK-NOT:       phase = "forward"
// CHECK:           stablehlo.cosine %[[M]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %c0, %sum = %zero) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %y = stablehlo.sine %m : tensor<4xf32>
    %b:2 = stablehlo.optimization_barrier %x, %y : tensor<4xf32>, tensor<4xf32>
    %a2 = stablehlo.multiply %b#0, %w : tensor<4xf32>
    %m2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a2 : tensor<4xf32>
    %cos = stablehlo.cosine %m2 : tensor<4xf32>
    %d = stablehlo.multiply %cos, %b#1 : tensor<4xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d : tensor<4xf32>
    %g = stablehlo.multiply %e, %b#0 : tensor<4xf32>
    %r = stablehlo.add %sum, %g : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// The same layer called again, of another value: two marks, of two stages.

// CHECK-LABEL: func.func public @main(
// CHECK:           %[[M0:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}}
// CHECK:           %[[M1:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}}
// CHECK:           stablehlo.add %[[M0]], %[[M1]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %c0, %sum = %zero) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %twice = stablehlo.add %x, %x : tensor<4xf32>
    %b = stablehlo.multiply %twice, %w : tensor<4xf32>
    %n = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %b : tensor<4xf32>
    %y = stablehlo.add %m, %n : tensor<4xf32>
    %r = stablehlo.add %sum, %y : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
