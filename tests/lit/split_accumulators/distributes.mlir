// RUN: jaxpp-opt %s --split-input-file -p assign-stages,split-accumulators | filecheck %s

// A mean over the microbatches that is taken inside of the loop: each term has the factor. So has one in front of a transposition.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %[[HALF:.*]] = stablehlo.constant dense<5.000000e-01>
// CHECK-NEXT:      %{{.*}} = stablehlo.constant dense<1>
// CHECK-NEXT:      %[[NEXT:.*]] = stablehlo.add
// CHECK-NEXT:      %[[H1:.*]] = stablehlo.multiply %[[HALF]], %[[G1]]
// CHECK-NEXT:      %[[D1:.*]] = stablehlo.divide %[[H1]], %[[N:[^ ]*]] {jaxpp.task = "backward_1"} :
// CHECK-NEXT:      %[[S:.*]] = stablehlo.add %[[SUM]], %[[D1]]
// CHECK-NEXT:      %[[H0:.*]] = stablehlo.multiply %[[HALF]], %[[G0]]
// CHECK-NEXT:      %[[D0:.*]] = stablehlo.divide %[[H0]], %[[N]] {jaxpp.task = "backward_0"} :
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S]], %[[D0]]
// CHECK-NEXT:      stablehlo.return %[[NEXT]], %[[R]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>, %n: tensor<4xf32>) -> tensor<4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %g1 = stablehlo.sine %m : tensor<4xf32>
    %d = stablehlo.multiply %m, %w : tensor<4xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d : tensor<4xf32>
    %g0 = stablehlo.multiply %e, %x : tensor<4xf32>
    %half = stablehlo.constant dense<0.5> : tensor<4xf32>
    %g = stablehlo.add %g1, %g0 : tensor<4xf32>
    %h = stablehlo.multiply %half, %g : tensor<4xf32>
    %k = stablehlo.divide %h, %n : tensor<4xf32>
    %r = stablehlo.add %sum, %k : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// All that is linear in the sum, and all that only moves its elements.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[H1:.*]] = stablehlo.negate
// CHECK-NEXT:      %[[D1:.*]] = stablehlo.reverse %[[H1]]
// CHECK-NEXT:      %[[S:.*]] = stablehlo.add %[[SUM]], %[[D1]]
// CHECK-NEXT:      %[[H0:.*]] = stablehlo.negate
// CHECK-NEXT:      %[[D0:.*]] = stablehlo.reverse %[[H0]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S]], %[[D0]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>, %n: tensor<4xf32>) -> tensor<4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %g1 = stablehlo.sine %m : tensor<4xf32>
    %d = stablehlo.multiply %m, %w : tensor<4xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d : tensor<4xf32>
    %g0 = stablehlo.multiply %e, %x : tensor<4xf32>
    %g = stablehlo.add %g1, %g0 : tensor<4xf32>
    %h = stablehlo.negate %g : tensor<4xf32>
    %k = stablehlo.reverse %h, dims = [0] : tensor<4xf32>
    %r = stablehlo.add %sum, %k : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}

// -----

// A weight that was reshaped before its stages used it, and a transposed one.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK-NEXT:      %{{.*}} = stablehlo.constant dense<1>
// CHECK-NEXT:      %[[NEXT:.*]] = stablehlo.add
// CHECK-NEXT:      %[[A1:.*]] = stablehlo.reshape %[[G1]]
// CHECK-NEXT:      %[[T1:.*]] = stablehlo.transpose %[[A1]]
// CHECK-NEXT:      %[[S:.*]] = stablehlo.add %[[SUM]], %[[T1]]
// CHECK-NEXT:      %[[A0:.*]] = stablehlo.reshape %[[G0]]
// CHECK-NEXT:      %[[T0:.*]] = stablehlo.transpose %[[A0]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S]], %[[T0]]
// CHECK-NEXT:      stablehlo.return %[[NEXT]], %[[R]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<2x2xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<2x2xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<2x2xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %g1 = stablehlo.sine %m : tensor<4xf32>
    %d = stablehlo.multiply %m, %w : tensor<4xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d : tensor<4xf32>
    %g0 = stablehlo.multiply %e, %x : tensor<4xf32>
    %g = stablehlo.add %g1, %g0 : tensor<4xf32>
    %h = stablehlo.reshape %g : (tensor<4xf32>) -> tensor<2x2xf32>
    %k = stablehlo.transpose %h, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %r = stablehlo.add %sum, %k : tensor<2x2xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<2x2xf32>
  }
  return %0#1 : tensor<2x2xf32>
}

// -----

// A conversion to a wider type.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[SUM:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[G1:.*]] = stablehlo.sine
// CHECK:           phase = "backward"
// CHECK:           %[[G0:.*]] = stablehlo.multiply
// CHECK:           %[[L1:.*]] = stablehlo.convert %[[G1]]
// CHECK-NEXT:      %[[L0:.*]] = stablehlo.convert %[[G0]]
// CHECK-NEXT:      %{{.*}} = stablehlo.constant dense<1>
// CHECK-NEXT:      %[[NEXT:.*]] = stablehlo.add
// CHECK-NEXT:      %[[C1:.*]] = stablehlo.convert %[[L1]]
// CHECK-NEXT:      %[[S:.*]] = stablehlo.add %[[SUM]], %[[C1]]
// CHECK-NEXT:      %[[C0:.*]] = stablehlo.convert %[[L0]]
// CHECK-NEXT:      %[[R:.*]] = stablehlo.add %[[S]], %[[C0]]
// CHECK-NEXT:      stablehlo.return %[[NEXT]], %[[R]]
func.func public @main(%w: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %a : tensor<4xf32>
    %g1 = stablehlo.sine %m : tensor<4xf32>
    %d = stablehlo.multiply %m, %w : tensor<4xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d : tensor<4xf32>
    %g0 = stablehlo.multiply %e, %x : tensor<4xf32>
    %l1 = stablehlo.convert %g1 : (tensor<4xf32>) -> tensor<4xbf16>
    %l0 = stablehlo.convert %g0 : (tensor<4xf32>) -> tensor<4xbf16>
    %g = stablehlo.add %l1, %l0 : tensor<4xbf16>
    %h = stablehlo.convert %g : (tensor<4xbf16>) -> tensor<4xf32>
    %r = stablehlo.add %sum, %h : tensor<4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %r : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
