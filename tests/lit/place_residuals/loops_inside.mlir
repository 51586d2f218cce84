// RUN: jaxpp-opt %s -p place-residuals | filecheck %s

// A loop inside of that of the forward stacks a tanh and its negative, and the outer one stacks these stacks. Now both stack
// the tanh alone; the loop inside of that of the backward reads its rows from the last to the first, and negates them.

// CHECK-LABEL: func.func public @main(
// CHECK:           %[[F:.*]]:3 = stablehlo.while(%{{.*}}) : tensor<i32>, tensor<8xf32>, tensor<2x3x8xf32> attributes {jaxpp.task = "forward_0"}
// CHECK:             %[[I:.*]]:3 = stablehlo.while(%{{.*}}) : tensor<i32>, tensor<8xf32>, tensor<3x8xf32>
// CHECK:               %[[Y:.*]] = stablehlo.tanh
// CHECK:               stablehlo.negate %[[Y]]
// CHECK:               %[[YR:.*]] = stablehlo.reshape %[[Y]]
// CHECK:               stablehlo.dynamic_update_slice %{{.*}}, %[[YR]]
// CHECK-NOT:           stablehlo.dynamic_update_slice
// CHECK:             %[[IR:.*]] = stablehlo.reshape %[[I]]#2
// CHECK:             stablehlo.dynamic_update_slice %{{.*}}, %[[IR]]
// CHECK-NOT:         stablehlo.dynamic_update_slice
// CHECK:           stablehlo.while({{.*}} attributes {jaxpp.task = "backward_0"}
// CHECK:           } do {
// CHECK:             %[[SLICE:.*]] = stablehlo.dynamic_slice %[[F]]#2, %{{.*}}, sizes = [1, 3, 8]
// CHECK-NEXT:        %[[STACK:.*]] = stablehlo.reshape %[[SLICE]]
// CHECK-NOT:         stablehlo.dynamic_slice
// CHECK:             stablehlo.while
// CHECK:             } do {
// CHECK:               %[[ROWS:.*]] = stablehlo.dynamic_slice %[[STACK]], %{{.*}}, sizes = [1, 8]
// CHECK-NEXT:          %[[ROW:.*]] = stablehlo.reshape %[[ROWS]]
// CHECK-NEXT:          %[[N:.*]] = stablehlo.negate %[[ROW]]
// CHECK-NOT:           stablehlo.dynamic_slice
// CHECK:               %[[G1:.*]] = stablehlo.multiply %{{.*}}, %[[ROW]]
// CHECK-NEXT:          stablehlo.multiply %[[G1]], %[[N]]
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %o = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<8xf32>
  %zeros = stablehlo.constant dense<0.0> : tensor<2x3x8xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<8xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %f:4 = stablehlo.while(%j = %first, %h = %x, %ys = %zeros, %ns = %zeros) : tensor<i32>, tensor<8xf32>, tensor<2x3x8xf32>, tensor<2x3x8xf32>
        attributes {jaxpp.task = "forward_0"}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %j, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %start = stablehlo.constant dense<0> : tensor<i32>
      %step = stablehlo.constant dense<1> : tensor<i32>
      %rows = stablehlo.constant dense<0.0> : tensor<3x8xf32>
      %g:4 = stablehlo.while(%k = %start, %hk = %h, %yk = %rows, %nk = %rows) : tensor<i32>, tensor<8xf32>, tensor<3x8xf32>, tensor<3x8xf32>
      cond {
        %limit = stablehlo.constant dense<3> : tensor<i32>
        %1 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
      } do {
        %by = stablehlo.constant dense<1> : tensor<i32>
        %y = stablehlo.tanh %hk : tensor<8xf32>
        %n = stablehlo.negate %y : tensor<8xf32>
        %yr = stablehlo.reshape %y : (tensor<8xf32>) -> tensor<1x8xf32>
        %y1 = stablehlo.dynamic_update_slice %yk, %yr, %k, %o : (tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<3x8xf32>
        %nr = stablehlo.reshape %n : (tensor<8xf32>) -> tensor<1x8xf32>
        %n1 = stablehlo.dynamic_update_slice %nk, %nr, %k, %o : (tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<3x8xf32>
        %next = stablehlo.add %k, %by : tensor<i32>
        stablehlo.return %next, %n, %y1, %n1 : tensor<i32>, tensor<8xf32>, tensor<3x8xf32>, tensor<3x8xf32>
      }
      %yr = stablehlo.reshape %g#2 : (tensor<3x8xf32>) -> tensor<1x3x8xf32>
      %ys1 = stablehlo.dynamic_update_slice %ys, %yr, %j, %o, %o : (tensor<2x3x8xf32>, tensor<1x3x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x3x8xf32>
      %nr = stablehlo.reshape %g#3 : (tensor<3x8xf32>) -> tensor<1x3x8xf32>
      %ns1 = stablehlo.dynamic_update_slice %ns, %nr, %j, %o, %o : (tensor<2x3x8xf32>, tensor<1x3x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x3x8xf32>
      %next = stablehlo.add %j, %step : tensor<i32>
      stablehlo.return %next, %g#1, %ys1, %ns1 : tensor<i32>, tensor<8xf32>, tensor<2x3x8xf32>, tensor<2x3x8xf32>
    }
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}, jaxpp.task = "backward_1"} %f#1 : tensor<8xf32>
    %d = stablehlo.cosine %m {jaxpp.task = "backward_1"} : tensor<8xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}, jaxpp.task = "backward_0"} %d : tensor<8xf32>
    %b:2 = stablehlo.while(%j = %first, %g = %e) : tensor<i32>, tensor<8xf32> attributes {jaxpp.task = "backward_0"}
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %1 = stablehlo.compare LT, %j, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %start = stablehlo.constant dense<0> : tensor<i32>
      %step = stablehlo.constant dense<1> : tensor<i32>
      %r = stablehlo.subtract %step, %j : tensor<i32>
      %yr = stablehlo.dynamic_slice %f#2, %r, %o, %o, sizes = [1, 3, 8] : (tensor<2x3x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x8xf32>
      %ys = stablehlo.reshape %yr : (tensor<1x3x8xf32>) -> tensor<3x8xf32>
      %nr = stablehlo.dynamic_slice %f#3, %r, %o, %o, sizes = [1, 3, 8] : (tensor<2x3x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x3x8xf32>
      %ns = stablehlo.reshape %nr : (tensor<1x3x8xf32>) -> tensor<3x8xf32>
      %c:2 = stablehlo.while(%k = %start, %gk = %g) : tensor<i32>, tensor<8xf32>
      cond {
        %limit = stablehlo.constant dense<3> : tensor<i32>
        %1 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
      } do {
        %by = stablehlo.constant dense<1> : tensor<i32>
        %two = stablehlo.constant dense<2> : tensor<i32>
        %t = stablehlo.subtract %two, %k : tensor<i32>
        %y1 = stablehlo.dynamic_slice %ys, %t, %o, sizes = [1, 8] : (tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
        %y = stablehlo.reshape %y1 : (tensor<1x8xf32>) -> tensor<8xf32>
        %n1 = stablehlo.dynamic_slice %ns, %t, %o, sizes = [1, 8] : (tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
        %n = stablehlo.reshape %n1 : (tensor<1x8xf32>) -> tensor<8xf32>
        %g1 = stablehlo.multiply %gk, %y : tensor<8xf32>
        %g2 = stablehlo.multiply %g1, %n : tensor<8xf32>
        %next = stablehlo.add %k, %by : tensor<i32>
        stablehlo.return %next, %g2 : tensor<i32>, tensor<8xf32>
      }
      %next = stablehlo.add %j, %step : tensor<i32>
      stablehlo.return %next, %c#1 : tensor<i32>, tensor<8xf32>
    }
    %t = stablehlo.add %sum, %b#1 {jaxpp.task = "backward_0"} : tensor<8xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<8xf32>
  }
  return %0#1 : tensor<8xf32>
}
