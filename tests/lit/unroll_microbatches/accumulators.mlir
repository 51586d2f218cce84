// RUN: jaxpp-opt %s --split-input-file -p unroll-microbatches | filecheck %s

// Stage 0 is on two meshes: each has a sum of its own, the second from zero. The mesh where stage 0 is at home comes first.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK:         %[[S0:.*]] = call @backward_0(%{{.*}}, %[[ZERO]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64
// CHECK-NEXT:    %[[ZERO_1:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK-NEXT:    %[[S1:.*]] = call @backward_0(%{{.*}}, %[[ZERO_1]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64
// CHECK:         %[[SUM:.*]] = stablehlo.add %[[S0]], %[[S1]]
// CHECK-NEXT:    return %[[SUM]]
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0+1 1+0\0Amesh 0: 0F0 1F1 1B1 .   .   0B0\0Amesh 1: 0F1 1F0 1B0 .   .   0B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = func.call @forward_1(%a) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %c = func.call @backward_1(%b) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %d = func.call @backward_0(%c, %sum) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %d : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @forward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.sine %a : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @backward_1(%b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.cosine %b : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @backward_0(%c: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.add %s, %c : tensor<f32>
  return %0 : tensor<f32>
}

// -----

// A maximum starts from the same value on both.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[LOW:.*]] = stablehlo.constant dense<0xFF800000> : tensor<f32>
// CHECK:         %[[S0:.*]] = call @backward_0(%{{.*}}, %[[LOW]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64
// CHECK-NEXT:    %[[S1:.*]] = call @backward_0(%{{.*}}, %[[LOW]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64
// CHECK:         %[[MAX:.*]] = stablehlo.maximum %[[S0]], %[[S1]]
// CHECK-NEXT:    return %[[MAX]]
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0+1 1+0\0Amesh 0: 0F0 1F1 1B1 .   .   0B0\0Amesh 1: 0F1 1F0 1B0 .   .   0B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = func.call @forward_1(%a) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %c = func.call @backward_1(%b) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %d = func.call @backward_0(%c, %sum) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %d : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @forward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.sine %a : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @backward_1(%b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.cosine %b : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @backward_0(%c: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.maximum %s, %c : tensor<f32>
  return %0 : tensor<f32>
}

// -----

// A stack has the rows of each mesh from that mesh.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<3x2xf32>
// CHECK:         %[[S0:.*]] = call @backward_0(%{{.*}}, %{{.*}}, %[[ZERO]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64
// CHECK:         %[[S1:.*]] = call @backward_0(%{{.*}}, %{{.*}}, %[[ZERO]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64
// CHECK:         %[[ROWS:.*]] = stablehlo.constant dense<[true, false]> : tensor<2xi1>
// CHECK-NEXT:    %[[MASK:.*]] = stablehlo.broadcast_in_dim %[[ROWS]], dims = [1] : (tensor<2xi1>) -> tensor<3x2xi1>
// CHECK-NEXT:    %[[ALL:.*]] = stablehlo.select %[[MASK]], %[[S0]], %[[S1]]
// CHECK-NEXT:    return %[[ALL]]
func.func public @main(%x: tensor<f32>) -> tensor<3x2xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<3x2xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<3x2xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0+1 1+0\0Amesh 0: 0F0 1F1 1B1 .   .   0B0\0Amesh 1: 0F1 1F0 1B0 .   .   0B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = func.call @forward_1(%a) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %c = func.call @backward_1(%b) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %d = func.call @backward_0(%c, %i, %sum) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<i32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %d : tensor<i32>, tensor<3x2xf32>
  }
  return %0#1 : tensor<3x2xf32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @forward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.sine %a : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @backward_1(%b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.cosine %b : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @backward_0(%c: tensor<f32>, %i: tensor<i32>, %s: tensor<3x2xf32>) -> tensor<3x2xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<3x1xf32>
  %1 = stablehlo.dynamic_update_slice %s, %0, %zero, %i : (tensor<3x2xf32>, tensor<3x1xf32>, tensor<i32>, tensor<i32>) -> tensor<3x2xf32>
  return %1 : tensor<3x2xf32>
}

// -----

// A sum of two stages, as split-accumulators leaves it: on each mesh both stages add to one sum, in the order of the schedule.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK:         %[[T0:.*]]:2 = call @backward_1(%{{.*}}, %[[ZERO]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64
// CHECK:         %[[ZERO_1:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK-NEXT:    %[[T1:.*]]:2 = call @backward_1(%{{.*}}, %[[ZERO_1]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64
// CHECK-NEXT:    %[[S0:.*]] = call @backward_0(%[[T1]]#0, %[[T0]]#1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64
// CHECK-NEXT:    %[[S1:.*]] = call @backward_0(%[[T0]]#0, %[[T1]]#1) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64
// CHECK:         %[[SUM:.*]] = stablehlo.add %[[S0]], %[[S1]]
// CHECK-NEXT:    return %[[SUM]]
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0+1 1+0\0Amesh 0: 0F0 1F1 1B1 .   .   0B0\0Amesh 1: 0F1 1F0 1B0 .   .   0B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = func.call @forward_1(%a) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %c:2 = func.call @backward_1(%b, %sum) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %d = func.call @backward_0(%c#0, %c#1) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %d : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @forward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.sine %a : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @backward_1(%b: tensor<f32>, %s: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.cosine %b : tensor<f32>
  %1 = stablehlo.add %b, %s : tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}
func.func private @backward_0(%c: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.add %s, %c : tensor<f32>
  return %0 : tensor<f32>
}

// -----

// The last microbatch first: the sum is taken in that order.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK:         %[[S1:.*]] = call @backward_0(%{{.*}}, %[[ZERO]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64
// CHECK:         %[[S0:.*]] = call @backward_0(%{{.*}}, %[[S1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64
// CHECK:         return %[[S0]]
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 .   .   .   .   0B1 0B0\0Amesh 1: .   1F0 1F1 1B1 1B0", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = func.call @forward_1(%a) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %c = func.call @backward_1(%b) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %d = func.call @backward_0(%c, %sum) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %d : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @forward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.sine %a : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @backward_1(%b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.cosine %b : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @backward_0(%c: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.add %s, %c : tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Two stages on one mesh, and all in one sum, in the order of the schedule.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK:         %[[T0:.*]]:2 = call @backward_1(%{{.*}}, %[[ZERO]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64
// CHECK:         %[[T1:.*]]:2 = call @backward_1(%{{.*}}, %[[T0]]#1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64
// CHECK-NEXT:    %[[S1:.*]] = call @backward_0(%[[T1]]#0, %[[T1]]#1) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64
// CHECK-NEXT:    %[[S0:.*]] = call @backward_0(%[[T0]]#0, %[[S1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64
// CHECK:         return %[[S0]]
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 0\0Amesh 0: 0F0 1F0 1B0 0F1 1F1 1B1 0B1 0B0", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %a = func.call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    %b = func.call @forward_1(%a) {jaxpp.stage = 1 : i64} : (tensor<f32>) -> tensor<f32>
    %c:2 = func.call @backward_1(%b, %sum) {jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    %d = func.call @backward_0(%c#0, %c#1) {jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %d : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
func.func private @forward_0(%x: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.tanh %x : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @forward_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.sine %a : tensor<f32>
  return %0 : tensor<f32>
}
func.func private @backward_1(%b: tensor<f32>, %s: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
  %0 = stablehlo.cosine %b : tensor<f32>
  %1 = stablehlo.add %b, %s : tensor<f32>
  return %0, %1 : tensor<f32>, tensor<f32>
}
func.func private @backward_0(%c: tensor<f32>, %s: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.add %s, %c : tensor<f32>
  return %0 : tensor<f32>
}
