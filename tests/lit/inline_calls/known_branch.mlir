// RUN: jaxpp-opt %s -p inline-calls --validate | filecheck %s

// A conditional whose branch is known becomes that branch: lax.platform_dependent chooses by a constant, which another
// conditional makes. An index out of range takes the last branch.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4xf32>
// CHECK-NOT: stablehlo.case
// CHECK-NOT: stablehlo.if
// CHECK: %[[SINE:.*]] = stablehlo.sine %[[X]]
// CHECK-NEXT: %[[TANH:.*]] = stablehlo.tanh %[[SINE]]
// CHECK-NEXT: %[[OTHER:.*]] = stablehlo.exponential %[[TANH]]
// CHECK: "stablehlo.case"(%{{.*}}) ({
// CHECK: %[[INNER:.*]] = stablehlo.cosine %[[OTHER]]
// CHECK-NEXT: stablehlo.return %[[INNER]]
func.func public @main(%x: tensor<4xf32>, %k: tensor<i32>) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %far = stablehlo.constant dense<7> : tensor<i32>
  %true = stablehlo.constant dense<true> : tensor<i1>
  %0 = "stablehlo.case"(%zero) ({
    %one = stablehlo.constant dense<1> : tensor<i32>
    stablehlo.return %one : tensor<i32>
  }, {
    stablehlo.return %zero : tensor<i32>
  }) : (tensor<i32>) -> tensor<i32>
  %1 = "stablehlo.case"(%0) ({
    %c = func.call @never(%x) : (tensor<4xf32>) -> tensor<4xf32>
    stablehlo.return %c : tensor<4xf32>
  }, {
    %s = stablehlo.sine %x : tensor<4xf32>
    stablehlo.return %s : tensor<4xf32>
  }) : (tensor<i32>) -> tensor<4xf32>
  %2 = "stablehlo.if"(%true) ({
    %t = stablehlo.tanh %1 : tensor<4xf32>
    stablehlo.return %t : tensor<4xf32>
  }, {
    stablehlo.return %1 : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  %3 = "stablehlo.case"(%far) ({
    stablehlo.return %2 : tensor<4xf32>
  }, {
    %e = stablehlo.exponential %2 : tensor<4xf32>
    stablehlo.return %e : tensor<4xf32>
  }) : (tensor<i32>) -> tensor<4xf32>
  %4 = "stablehlo.case"(%k) ({
    %5 = "stablehlo.case"(%zero) ({
      %c = stablehlo.cosine %3 : tensor<4xf32>
      stablehlo.return %c : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    stablehlo.return %5 : tensor<4xf32>
  }, {
    stablehlo.return %3 : tensor<4xf32>
  }) : (tensor<i32>) -> tensor<4xf32>
  return %4 : tensor<4xf32>
}
func.func private @never(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}
