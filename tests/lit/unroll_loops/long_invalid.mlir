// RUN: not jaxpp-opt %s -p "find-microbatch-loop{schedule=gpipe meshes=2},unroll-loops" 2>&1 | filecheck %s

// CHECK: long_invalid.mlir:[[# @LINE + 13]]:12: error: a mark inside a loop that runs 2,147,483,647 times: it is not unrolled into more than 524,288 operations
// CHECK-NEXT: put marks into a shorter loop
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
      %limit = stablehlo.constant dense<2147483647> : tensor<i32>
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
