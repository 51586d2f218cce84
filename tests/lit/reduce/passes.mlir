// RUN: jaxpp-reduce %s -p find-microbatch-loop --expect "no constant trip count" | filecheck %s

// A loop whose limit depends on an argument, among operations that do not matter.

// CHECK: module {
// CHECK-NEXT: func.func @main() {
// CHECK-NEXT: stablehlo.while() attributes {jaxpp.microbatch_loop = {length = 1 : i64, schedule = ""}}
// CHECK: stablehlo.constant dense<false>
// CHECK: stablehlo.return
// CHECK-NEXT: }
// CHECK-NEXT: return
func.func @main(%n: tensor<i32>, %w: tensor<4x4xf32>, %batch: tensor<8x2x4xf32>) -> (tensor<i32>, tensor<4x4xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %i, %sum = stablehlo.while(%k = %zero, %a = %w) : tensor<i32>, tensor<4x4xf32> attributes {jaxpp.microbatch_loop = {length = 8 : i64, schedule = ""}}
    cond {
      %goes_on = stablehlo.compare LT, %k, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %goes_on : tensor<i1>
    } do {
      %next = stablehlo.add %k, %one : tensor<i32>
      %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
      %c = func.call @tanh(%b) : (tensor<4x4xf32>) -> tensor<4x4xf32>
      stablehlo.return %next, %c : tensor<i32>, tensor<4x4xf32>
    }
  %update = stablehlo.subtract %w, %sum : tensor<4x4xf32>
  return %i, %update : tensor<i32>, tensor<4x4xf32>
}
func.func private @tanh(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %y = stablehlo.tanh %x : tensor<4x4xf32>
  return %y : tensor<4x4xf32>
}
