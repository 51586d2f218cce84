// RUN: jaxpp-opt %s -p assign-stages,place-residuals,outline-stages --validate | filecheck %s

// A loop inside of a loop begins with a value of the outer one that it also captures, and so do the branches of a
// conditional inside: the function takes the value once, and the regions read its argument.

// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[START:[^ ]*]]: tensor<i32>, %[[X:[^ ]*]]: tensor<f32>)
// CHECK:         stablehlo.while(%[[I:[^ ]*]] = %[[START]], %[[A:[^ ]*]] = %[[X]])
// CHECK:           stablehlo.while(%[[J:[^ ]*]] = %[[START]], %[[B:[^ ]*]] = %[[A]])
// CHECK:             stablehlo.add %[[B]], %[[X]]
// CHECK:           "stablehlo.case"(%[[START]])
// CHECK:             stablehlo.convert %[[START]]
// CHECK:             stablehlo.negate %[[A]]
// CHECK-LABEL: func.func private @forward_1(
func.func public @main(%start: tensor<i32>, %w: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:2 = stablehlo.while(%i = %first, %sum = %zero) : tensor<i32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "", stages = 2 : i64,
          indices = array<i64: 0>, starts = array<i64: 0>, steps = array<i64: 1>}}
  cond {
    %limit = stablehlo.constant dense<2> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1:2 = stablehlo.while(%j = %start, %a = %w) : tensor<i32>, tensor<f32>
    cond {
      %three = stablehlo.constant dense<3> : tensor<i32>
      %2 = stablehlo.compare LT, %j, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2:2 = stablehlo.while(%k = %start, %b = %a) : tensor<i32>, tensor<f32>
      cond {
        %3 = stablehlo.compare LT, %k, %j : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %3 : tensor<i1>
      } do {
        %one = stablehlo.constant dense<1> : tensor<i32>
        %3 = stablehlo.add %b, %w : tensor<f32>
        %4 = stablehlo.add %k, %one : tensor<i32>
        stablehlo.return %4, %3 : tensor<i32>, tensor<f32>
      }
      %5 = "stablehlo.case"(%start) ({
        %6 = stablehlo.convert %start : (tensor<i32>) -> tensor<f32>
        stablehlo.return %6 : tensor<f32>
      }, {
        %6 = stablehlo.negate %a : tensor<f32>
        stablehlo.return %6 : tensor<f32>
      }) : (tensor<i32>) -> tensor<f32>
      %7 = stablehlo.add %2#1, %5 : tensor<f32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %8 = stablehlo.add %j, %one : tensor<i32>
      stablehlo.return %8, %7 : tensor<i32>, tensor<f32>
    }
    %9 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1#1 : tensor<f32>
    %10 = stablehlo.multiply %9, %w : tensor<f32>
    %11 = stablehlo.add %sum, %10 : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %11 : tensor<i32>, tensor<f32>
  }
  return %0#1 : tensor<f32>
}
