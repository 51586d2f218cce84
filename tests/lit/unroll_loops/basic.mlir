// RUN: jaxpp-opt %s -p "find-microbatch-loop{schedule=gpipe meshes=2},unroll-loops" | filecheck %s

// A scan over two layers with a mark in its body is the two layers. Each mark has the number of its layer.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:[^ ]*]]: tensor<2x4xf32>
// CHECK:         stablehlo.while(%[[I:[^ ]*]] = %{{[^ ]*}}, %[[X:[^ ]*]] = %{{[^ ]*}})
// CHECK:           %[[ZERO:.*]] = stablehlo.constant dense<0>
// CHECK:           %[[ONE:.*]] = stablehlo.constant dense<1>
// CHECK-NEXT:      %[[ROW0:.*]] = stablehlo.dynamic_slice %[[W]], %[[ZERO]], %[[ZERO]], sizes = [1, 4]
// CHECK-NEXT:      %[[W0:.*]] = stablehlo.reshape %[[ROW0]]
// CHECK-NEXT:      %[[Y0:.*]] = stablehlo.multiply %[[X]], %[[W0]]
// CHECK-NEXT:      %[[M0:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {layer = 0 : i64, {{.*}}}} %[[Y0]]
// CHECK-NEXT:      %[[K:.*]] = stablehlo.add %[[ZERO]], %[[ONE]]
// CHECK-NEXT:      %[[ROW1:.*]] = stablehlo.dynamic_slice %[[W]], %[[K]], %[[ZERO]], sizes = [1, 4]
// CHECK-NEXT:      %[[W1:.*]] = stablehlo.reshape %[[ROW1]]
// CHECK-NEXT:      %[[Y1:.*]] = stablehlo.multiply %[[M0]], %[[W1]]
// CHECK-NEXT:      %[[M1:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {layer = 1 : i64, {{.*}}}} %[[Y1]]
// CHECK-NOT:       stablehlo.while
// CHECK:           stablehlo.return %{{.*}}, %[[M1]]
func.func public @main(%w: tensor<2x4xf32>, %a: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c0, %x = %a) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1:2 = stablehlo.while(%k = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %2 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.dynamic_slice %w, %k, %zero, sizes = [1, 4] : (tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x4xf32>) -> tensor<4xf32>
      %4 = stablehlo.multiply %y, %3 : tensor<4xf32>
      %5 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %4 : tensor<4xf32>
      %6 = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %6, %5 : tensor<i32>, tensor<4xf32>
    }
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %7, %1#1 : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
