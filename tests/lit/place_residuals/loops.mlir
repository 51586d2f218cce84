// RUN: jaxpp-opt %s -p place-residuals | filecheck %s

// The forward stacks a tanh, its negative and what is made of that and of the number of the trip; the backward reads
// all three from the last row to the first. It makes two of them again, in each of its trips, of the row that is left.

// CHECK-LABEL: func.func public @main(
// CHECK:           %[[F:.*]]:3 = stablehlo.while(%{{.*}}) : tensor<i32>, tensor<8xf32>, tensor<3x8xf32> attributes {jaxpp.task = "forward_0"}
// CHECK:             %[[Y:.*]] = stablehlo.tanh
// CHECK-NEXT:        stablehlo.negate %[[Y]]
// CHECK-NOT:         stablehlo.convert
// CHECK:             stablehlo.dynamic_update_slice
// CHECK-NOT:         stablehlo.dynamic_update_slice
// CHECK:           stablehlo.while({{.*}} attributes {jaxpp.task = "backward_0"}
// CHECK:           } do {
// CHECK:             %[[MINUS:.*]] = stablehlo.multiply %[[K:.*]], %{{.*}} : tensor<i32>
// CHECK:             %[[TRIP:.*]] = stablehlo.add %[[MINUS]], %{{.*}} : tensor<i32>
// CHECK:             %[[SLICE:.*]] = stablehlo.dynamic_slice %[[F]]#2, %[[TRIP]], %{{.*}}, sizes = [1, 8]
// CHECK-NEXT:        %[[ROW:.*]] = stablehlo.reshape %[[SLICE]]
// CHECK:             %[[N:.*]] = stablehlo.negate %[[ROW]]
// CHECK:             %[[NUMBER:.*]] = stablehlo.convert %[[TRIP]] : (tensor<i32>) -> tensor<f32>
// CHECK-NEXT:        %[[NUMBERS:.*]] = stablehlo.broadcast_in_dim %[[NUMBER]], dims = []
// CHECK-NEXT:        %[[P:.*]] = stablehlo.multiply %[[N]], %[[NUMBERS]]
// CHECK-NOT:         stablehlo.dynamic_slice
// CHECK:             %[[G1:.*]] = stablehlo.multiply %{{.*}}, %[[ROW]]
// CHECK-NEXT:        %[[G2:.*]] = stablehlo.multiply %[[G1]], %[[N]]
// CHECK-NEXT:        stablehlo.multiply %[[G2]], %[[P]]
func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<8xf32>
  %zeros = stablehlo.constant dense<0.0> : tensor<3x8xf32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<8xf32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %f:5 = stablehlo.while(%k = %first, %h = %x, %ys = %zeros, %ns = %zeros, %ps = %zeros) : tensor<i32>, tensor<8xf32>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3x8xf32>
        attributes {jaxpp.task = "forward_0"}
    cond {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %o = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %y = stablehlo.tanh %h : tensor<8xf32>
      %n = stablehlo.negate %y : tensor<8xf32>
      %c = stablehlo.convert %k : (tensor<i32>) -> tensor<f32>
      %cs = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8xf32>
      %p = stablehlo.multiply %n, %cs : tensor<8xf32>
      %yr = stablehlo.reshape %y : (tensor<8xf32>) -> tensor<1x8xf32>
      %ys1 = stablehlo.dynamic_update_slice %ys, %yr, %k, %o : (tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<3x8xf32>
      %nr = stablehlo.reshape %n : (tensor<8xf32>) -> tensor<1x8xf32>
      %ns1 = stablehlo.dynamic_update_slice %ns, %nr, %k, %o : (tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<3x8xf32>
      %pr = stablehlo.reshape %p : (tensor<8xf32>) -> tensor<1x8xf32>
      %ps1 = stablehlo.dynamic_update_slice %ps, %pr, %k, %o : (tensor<3x8xf32>, tensor<1x8xf32>, tensor<i32>, tensor<i32>) -> tensor<3x8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %n, %ys1, %ns1, %ps1 : tensor<i32>, tensor<8xf32>, tensor<3x8xf32>, tensor<3x8xf32>, tensor<3x8xf32>
    }
    %m = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}, jaxpp.task = "backward_1"} %f#1 : tensor<8xf32>
    %d = stablehlo.cosine %m {jaxpp.task = "backward_1"} : tensor<8xf32>
    %e = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}, jaxpp.task = "backward_0"} %d : tensor<8xf32>
    %b:2 = stablehlo.while(%k = %first, %g = %e) : tensor<i32>, tensor<8xf32> attributes {jaxpp.task = "backward_0"}
    cond {
      %limit = stablehlo.constant dense<3> : tensor<i32>
      %1 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %o = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %two = stablehlo.constant dense<2> : tensor<i32>
      %r = stablehlo.subtract %two, %k : tensor<i32>
      %ys = stablehlo.dynamic_slice %f#2, %r, %o, sizes = [1, 8] : (tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
      %y = stablehlo.reshape %ys : (tensor<1x8xf32>) -> tensor<8xf32>
      %ns = stablehlo.dynamic_slice %f#3, %r, %o, sizes = [1, 8] : (tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
      %n = stablehlo.reshape %ns : (tensor<1x8xf32>) -> tensor<8xf32>
      %ps = stablehlo.dynamic_slice %f#4, %r, %o, sizes = [1, 8] : (tensor<3x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
      %p = stablehlo.reshape %ps : (tensor<1x8xf32>) -> tensor<8xf32>
      %g1 = stablehlo.multiply %g, %y : tensor<8xf32>
      %g2 = stablehlo.multiply %g1, %n : tensor<8xf32>
      %g3 = stablehlo.multiply %g2, %p : tensor<8xf32>
      %next = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %next, %g3 : tensor<i32>, tensor<8xf32>
    }
    %t = stablehlo.add %sum, %b#1 {jaxpp.task = "backward_0"} : tensor<8xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %t : tensor<i32>, tensor<8xf32>
  }
  return %0#1 : tensor<8xf32>
}
