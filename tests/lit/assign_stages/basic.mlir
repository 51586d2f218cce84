// RUN: jaxpp-opt %s --split-input-file -p assign-stages | filecheck %s

// What a mark needs is the task that ends there; the mark itself belongs to the one that its result enters. Without a
// mark after the last stage its forward is a part of its backward. The sums go with what is added.

// CHECK-LABEL: func.func public @main(
// CHECK:         } do {
// CHECK-NEXT:      %[[Y:.*]] = stablehlo.tanh %{{.*}} {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[M:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}, jaxpp.task = "backward_1"} %[[Y]]
// CHECK-NEXT:      %[[D:.*]] = stablehlo.cosine %[[M]] {jaxpp.task = "backward_1"}
// CHECK-NEXT:      %[[E:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}, jaxpp.task = "backward_0"} %[[D]]
// CHECK-NEXT:      %[[G:.*]] = stablehlo.multiply %[[E]], %[[Y]] {jaxpp.task = "backward_0"}
// CHECK-NEXT:      %[[N:.*]] = stablehlo.add %{{.*}}, %[[G]] {jaxpp.task = "backward_0"}
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.tanh %x : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.cosine %2 : tensor<f32>
    %4 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %3 : tensor<f32>
    %5 = stablehlo.multiply %4, %1 : tensor<f32>
    %n = stablehlo.add %sum, %5 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A cast of a weight, also behind the barrier of jax.checkpoint, is no task's: each that uses it makes it. So is the
// counting of microbatches. An exponential is made once, for the first that uses it; what nobody uses goes.

// CHECK-LABEL: func.func public @main(
// CHECK:         } do {
// CHECK-NEXT:      %[[A:.*]] = stablehlo.abs %[[W:.*]] : tensor<f32>
// CHECK-NEXT:      %[[B:.*]] = stablehlo.optimization_barrier %[[W]] : tensor<f32>
// CHECK-NEXT:      %[[C:.*]] = stablehlo.negate %[[B]] : tensor<f32>
// CHECK-NEXT:      %[[E:.*]] = stablehlo.exponential %[[W]] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[Y:.*]] = stablehlo.multiply %[[A]], %[[E]] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[M:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}, jaxpp.task = "forward_1"} %[[Y]]
// CHECK-NEXT:      %[[Z:.*]] = stablehlo.multiply %[[M]], %[[A]] {jaxpp.task = "forward_1"}
// CHECK-NEXT:      %[[Q:.*]] = stablehlo.multiply %[[Z]], %[[C]] {jaxpp.task = "forward_1"}
// CHECK-NEXT:      %[[R:.*]] = stablehlo.multiply %[[Q]], %[[E]] {jaxpp.task = "forward_1"}
// CHECK-NEXT:      %[[N:.*]] = stablehlo.add %{{.*}}, %[[R]] {jaxpp.task = "forward_1"}
// CHECK-NEXT:      %[[ONE:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:      %[[NEXT:.*]] = stablehlo.add %{{.*}}, %[[ONE]] : tensor<i32>
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = stablehlo.abs %w : tensor<f32>
    %b = stablehlo.optimization_barrier %w : tensor<f32>
    %c = stablehlo.negate %b : tensor<f32>
    %e = stablehlo.exponential %w : tensor<f32>
    %unused = stablehlo.sine %e : tensor<f32>
    %1 = stablehlo.multiply %a, %e : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %a : tensor<f32>
    %4 = stablehlo.multiply %3, %c : tensor<f32>
    %5 = stablehlo.multiply %4, %e : tensor<f32>
    %n = stablehlo.add %sum, %5 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A barrier of jax.checkpoint holds a weight and a value of stage 0. The weight gets a barrier of its own, which each task
// makes for itself: stage 1 needs nothing of the other one.

// CHECK-LABEL: func.func public @main(
// CHECK:           %[[Y:.*]] = stablehlo.tanh %[[X:.*]] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[W:.*]] = stablehlo.optimization_barrier %[[W0:.*]] : tensor<f32>
// CHECK-NEXT:      %[[K:.*]] = stablehlo.optimization_barrier {jaxpp.task = "forward_0"} %[[Y]] : tensor<f32>
// CHECK-NEXT:      %[[Z:.*]] = stablehlo.multiply %[[K]], %[[W]] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[M:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}, jaxpp.task = "forward_1"} %[[Z]]
// CHECK-NEXT:      %{{.*}} = stablehlo.multiply %[[M]], %[[W]] {jaxpp.task = "forward_1"}
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %y = stablehlo.tanh %x : tensor<f32>
    %again:2 = stablehlo.optimization_barrier %y, %w : tensor<f32>, tensor<f32>
    %1 = stablehlo.multiply %again#0, %again#1 : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.multiply %2, %again#1 : tensor<f32>
    %n = stablehlo.add %sum, %3 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}

// -----

// A cheap value that the loop hands on: the task that uses it for the next microbatch makes it, and uses its own. The
// other task still has none but what it makes.

// CHECK-LABEL: func.func public @main(
// CHECK:           %[[S:.*]] = stablehlo.negate %[[X:.*]] : tensor<f32>
// CHECK-NEXT:      %[[T:.*]] = stablehlo.negate %[[X]] {jaxpp.task = "forward_1"}
// CHECK-NEXT:      %[[Y:.*]] = stablehlo.tanh %[[S]] {jaxpp.task = "forward_0"}
// CHECK-NEXT:      %[[M:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {{.*}}, jaxpp.task = "forward_1"} %[[Y]]
// CHECK-NEXT:      %[[Z:.*]] = stablehlo.add %[[M]], %[[T]] {jaxpp.task = "forward_1"}
// CHECK-NEXT:      %[[N:.*]] = stablehlo.add %[[BEFORE:.*]], %[[Z]] {jaxpp.task = "forward_1"}
// CHECK:           stablehlo.return %{{.*}}, %[[T]], %[[N]]
func.func public @main(%w: tensor<f32>, %x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:3 = stablehlo.while(%i = %first, %before = %zero, %last = %zero) : tensor<i32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %s = stablehlo.negate %x : tensor<f32>
    %1 = stablehlo.tanh %s : tensor<f32>
    %2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<f32>
    %3 = stablehlo.add %2, %s : tensor<f32>
    %4 = stablehlo.add %before, %3 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %s, %4 : tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<f32>, tensor<f32>
}
