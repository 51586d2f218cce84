// RUN: jaxpp-opt %s --split-input-file -p unroll-microbatches | filecheck %s

// The backward of stage 1 is split for microbatch 1, not for microbatch 0: there it is one function of both halves,
// and what is kept for the weight gradient is no result of it.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK:         %[[B1:.*]]:3 = call @backward_1(%[[A]], %[[B]], %{{.*}}, %{{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0:.*]] = call @backward_0(%[[B1]]#0, %{{.*}})
// CHECK-NEXT:    %[[IG1:.*]]:2 = call @input_grad_1(%[[A]], %[[B]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[WG1:.*]]:2 = call @weight_grad_1(%[[IG1]]#1, %[[B]], %[[B1]]#1, %[[B1]]#2) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B0_1:.*]] = call @backward_0(%[[IG1]]#0, %[[B0]])
// CHECK-NEXT:    stablehlo.constant dense<2>
// CHECK-NEXT:    return %[[B0_1]], %[[WG1]]#0, %[[WG1]]#1
// CHECK-LABEL: func.func private @input_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "input_grad", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[B]]
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[TANH]], %[[A]], contracting_dims = [1] x [1]
// CHECK-NEXT:    return %[[DOT]], %[[TANH]]
// CHECK-LABEL: func.func private @weight_grad_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>, %[[D:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 1 : i64, jaxpp.sums = array<i64: 2, 3>}
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[A]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT]]
// CHECK-NEXT:    %[[ADD_2:.*]] = stablehlo.add %[[D]], %[[B]]
// CHECK-NEXT:    return %[[ADD]], %[[ADD_2]]
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>, %[[D:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[B]]
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[TANH]], %[[A]], contracting_dims = [1] x [1]
// CHECK-NEXT:    %[[DOT_2:.*]] = stablehlo.dot_general %[[TANH]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT_2]]
// CHECK-NEXT:    %[[ADD_2:.*]] = stablehlo.add %[[D]], %[[B]]
// CHECK-NEXT:    return %[[DOT]], %[[ADD]], %[[ADD_2]]
func.func public @main(%v: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:4 = stablehlo.while(%i = %first, %e = %zero, %g = %zero, %k = %zero) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 0\0Amesh 0: 0F0 1F0 1B0 0B0 0F1 1F1 1I1 1W1 0B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %d:2 = func.call @input_grad_1(%v, %x) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %s:2 = func.call @weight_grad_1(%d#1, %x, %g, %k) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %c = func.call @backward_0(%d#0, %e) {jaxpp.stage = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %c, %s#0, %s#1 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  return %0#1, %0#2, %0#3 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @input_grad_1(%v: tensor<4x4xf32>, %y: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "input_grad", jaxpp.stage = 1 : i64} {
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  %d = stablehlo.dot_general %t, %v, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %d, %t : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @weight_grad_1(%t: tensor<4x4xf32>, %y: tensor<4x4xf32>, %g: tensor<4x4xf32>, %k: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 1 : i64} {
  %d = stablehlo.dot_general %t, %y, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %d : tensor<4x4xf32>
  %r = stablehlo.add %k, %y : tensor<4x4xf32>
  return %s, %r : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @backward_0(%d: tensor<4x4xf32>, %g: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.add %g, %d : tensor<4x4xf32>
  return %0 : tensor<4x4xf32>
}

// -----

// Two sums start from one zero. They are two arguments: later they are two values, and the function is the same. A
// result that only one of the calls needs is a result of both.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>)
// CHECK:         %[[B1:.*]]:3 = call @backward_1(%[[A]], %[[B]], %{{.*}}, %{{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B1_2:.*]]:3 = call @backward_1(%[[A]], %[[B]], %[[B1]]#1, %[[B1]]#2) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    stablehlo.constant dense<2>
// CHECK-NEXT:    return %[[B1_2]]#0, %[[B1_2]]#1, %[[B1_2]]#2
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      %[[A:.*]]: tensor<4x4xf32>, %[[B:.*]]: tensor<4x4xf32>, %[[C:.*]]: tensor<4x4xf32>, %[[D:.*]]: tensor<4x4xf32>)
// CHECK-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[B]]
// CHECK-NEXT:    %[[DOT:.*]] = stablehlo.dot_general %[[TANH]], %[[A]], contracting_dims = [1] x [1]
// CHECK-NEXT:    %[[DOT_2:.*]] = stablehlo.dot_general %[[TANH]], %[[B]], contracting_dims = [0] x [0]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[C]], %[[DOT_2]]
// CHECK-NEXT:    %[[ADD_2:.*]] = stablehlo.add %[[D]], %[[B]]
// CHECK-NEXT:    return %[[DOT]], %[[ADD]], %[[ADD_2]]
func.func public @main(%v: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<4x4xf32>
  %0:4 = stablehlo.while(%i = %first, %e = %zero, %g = %zero, %k = %zero) : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: mine\0Aplacement: 0 0\0Amesh 0: 0F0 1F0 1B0 0F1 1F1 1B1 0B0 0B1", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %d:2 = func.call @input_grad_1(%v, %x) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %s:2 = func.call @weight_grad_1(%d#1, %x, %g, %k) {jaxpp.stage = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %d#0, %s#0, %s#1 : tensor<i32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
  }
  return %0#1, %0#2, %0#3 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @input_grad_1(%v: tensor<4x4xf32>, %y: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "input_grad", jaxpp.stage = 1 : i64} {
  %t = stablehlo.tanh %y : tensor<4x4xf32>
  %d = stablehlo.dot_general %t, %v, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %d, %t : tensor<4x4xf32>, tensor<4x4xf32>
}
func.func private @weight_grad_1(%t: tensor<4x4xf32>, %y: tensor<4x4xf32>, %g: tensor<4x4xf32>, %k: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 1 : i64} {
  %d = stablehlo.dot_general %t, %y, contracting_dims = [0] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %s = stablehlo.add %g, %d : tensor<4x4xf32>
  %r = stablehlo.add %k, %y : tensor<4x4xf32>
  return %s, %r : tensor<4x4xf32>, tensor<4x4xf32>
}
