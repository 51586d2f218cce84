// RUN: jaxpp-opt %s -p "find-microbatch-loop{schedule=gpipe meshes=2},unroll-loops" | filecheck %s

// A loop that runs once is its body, also without a mark. One that runs twice stays, and so does that over the single
// microbatch.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:[^ ]*]]: tensor<1x4xf32>
// CHECK:         stablehlo.while(%[[I:[^ ]*]] = %{{[^ ]*}}, %[[X:[^ ]*]] = %{{[^ ]*}}){{.*}}jaxpp.microbatch_loop
// CHECK:           %[[SLICE:.*]] = stablehlo.dynamic_slice %[[W]], %{{.*}}, sizes = [1, 4]
// CHECK-NEXT:      %[[ROW:.*]] = stablehlo.reshape %[[SLICE]]
// CHECK-NEXT:      %[[Y:.*]] = stablehlo.multiply %[[X]], %[[ROW]]
// CHECK:           %[[LOOP:.*]]:2 = stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %{{[^ ]*}} = %[[Y]])
// CHECK:             stablehlo.sine
// CHECK-NOT:       stablehlo.while
// CHECK:           stablehlo.return %{{.*}}, %[[LOOP]]#1
func.func public @main(%w: tensor<1x4xf32>, %a: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c0, %x = %a) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 1 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<1> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %1:2 = stablehlo.while(%k = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %limit = stablehlo.constant dense<1> : tensor<i32>
      %2 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = stablehlo.dynamic_slice %w, %k, %zero, sizes = [1, 4] : (tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>
      %3 = stablehlo.reshape %2 : (tensor<1x4xf32>) -> tensor<4xf32>
      %4 = stablehlo.multiply %y, %3 : tensor<4xf32>
      %6 = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %6, %4 : tensor<i32>, tensor<4xf32>
    }
    %2:2 = stablehlo.while(%k = %zero, %y = %1#1) : tensor<i32>, tensor<4xf32>
    cond {
      %limit = stablehlo.constant dense<2> : tensor<i32>
      %3 = stablehlo.compare LT, %k, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %3 : tensor<i1>
    } do {
      %3 = stablehlo.sine %y : tensor<4xf32>
      %4 = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %4, %3 : tensor<i32>, tensor<4xf32>
    }
    %7 = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %7, %2#1 : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
