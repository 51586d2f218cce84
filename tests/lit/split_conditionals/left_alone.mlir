// RUN: jaxpp-opt %s --split-input-file -p split-conditionals | filecheck %s

// Results that share a product stay together, also when what links them comes last.

// CHECK-LABEL: func.func public @main(
// CHECK-NEXT:    %[[ALL:.*]]:3 = "stablehlo.case"(
// CHECK:           stablehlo.dot_general
// CHECK-NEXT:      stablehlo.dot_general
// CHECK-NEXT:      stablehlo.add
// CHECK:         return %[[ALL]]#0, %[[ALL]]#1, %[[ALL]]#2
func.func public @main(%i: tensor<i32>, %x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0:3 = "stablehlo.case"(%i) ({
    stablehlo.return %x, %x, %x : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  }, {
    %1 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.dot_general %x, %x, contracting_dims = [0] x [1] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %3 = stablehlo.add %1, %2 : tensor<8x8xf32>
    stablehlo.return %1, %2, %3 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  }) : (tensor<i32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>)
  return %0#0, %0#1, %0#2 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

// A conditional with a side effect runs once, as it is. Those inside of a loop are not looked at.

// CHECK-LABEL: func.func public @main(
// CHECK:         "stablehlo.case"(
// CHECK:           stablehlo.rng
// CHECK:         stablehlo.while
// CHECK:           "stablehlo.if"(
func.func public @main(%i: tensor<i32>, %flag: tensor<i1>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %low = stablehlo.constant dense<0.0> : tensor<f32>
  %high = stablehlo.constant dense<1.0> : tensor<f32>
  %shape = stablehlo.constant dense<8> : tensor<1xi64>
  %0 = "stablehlo.case"(%i) ({
    stablehlo.return %x : tensor<8xf32>
  }, {
    %1 = stablehlo.rng %low, %high, %shape, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<8xf32>
    stablehlo.return %1 : tensor<8xf32>
  }) : (tensor<i32>) -> tensor<8xf32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %2:2 = stablehlo.while(%k = %zero, %y = %0) : tensor<i32>, tensor<8xf32>
  cond {
    %3 = stablehlo.compare LT, %k, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %3 : tensor<i1>
  } do {
    %3 = "stablehlo.if"(%flag) ({
      stablehlo.return %y : tensor<8xf32>
    }, {
      %4 = stablehlo.negate %y : tensor<8xf32>
      stablehlo.return %4 : tensor<8xf32>
    }) : (tensor<i1>) -> tensor<8xf32>
    %5 = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %5, %3 : tensor<i32>, tensor<8xf32>
  }
  return %2#1 : tensor<8xf32>
}

// -----

// A stage mark stays where the user wrote it: find-microbatch-loop, which comes later, says that it can't stand there.

// CHECK-LABEL: func.func public @main(
// CHECK-NEXT:    "stablehlo.if"(
// CHECK-NEXT:      stablehlo.optimization_barrier
func.func public @main(%flag: tensor<i1>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "stablehlo.if"(%flag) ({
    %1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<8xf32>
    stablehlo.return %1 : tensor<8xf32>
  }, {
    stablehlo.return %x : tensor<8xf32>
  }) : (tensor<i1>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
