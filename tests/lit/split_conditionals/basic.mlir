// RUN: jaxpp-opt %s --split-input-file -p split-conditionals | filecheck %s

// A step that is skipped when a gradient is not finite: both weights are updated in any case, and each result is chosen
// by itself. What both branches return alike needs no choice.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[FINITE:.*]]: tensor<i1>, %[[W0:.*]]: tensor<8xf32>, %[[G0:.*]]: tensor<8xf32>, %[[W1:.*]]: tensor<4xf32>, %[[G1:.*]]: tensor<4xf32>)
// CHECK-NOT:     stablehlo.case
// CHECK:         %[[NEW0:.*]] = stablehlo.subtract %[[W0]], %[[G0]]
// CHECK-NEXT:    %[[NEW1:.*]] = stablehlo.subtract %[[W1]], %[[G1]]
// CHECK-NEXT:    %[[CHOSEN0:.*]] = stablehlo.select %[[FINITE]], %[[NEW0]], %[[W0]]
// CHECK-NEXT:    %[[CHOSEN1:.*]] = stablehlo.select %[[FINITE]], %[[NEW1]], %[[W1]]
// CHECK-NEXT:    return %[[CHOSEN0]], %[[CHOSEN1]], %[[G0]]
func.func public @main(%finite: tensor<i1>, %w0: tensor<8xf32>, %g0: tensor<8xf32>, %w1: tensor<4xf32>, %g1: tensor<4xf32>) -> (tensor<8xf32>, tensor<4xf32>, tensor<8xf32>) {
  %i = stablehlo.convert %finite : (tensor<i1>) -> tensor<i32>
  %0:3 = "stablehlo.case"(%i) ({
    stablehlo.return %w0, %w1, %g0 : tensor<8xf32>, tensor<4xf32>, tensor<8xf32>
  }, {
    %1 = stablehlo.subtract %w0, %g0 : tensor<8xf32>
    %2 = stablehlo.subtract %w1, %g1 : tensor<4xf32>
    stablehlo.return %1, %2, %g0 : tensor<8xf32>, tensor<4xf32>, tensor<8xf32>
  }) : (tensor<i32>) -> (tensor<8xf32>, tensor<4xf32>, tensor<8xf32>)
  return %0#0, %0#1, %0#2 : tensor<8xf32>, tensor<4xf32>, tensor<8xf32>
}

// -----

// A case takes its last branch for any number that it has no branch for; an if takes its first when it is true.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[I:.*]]: tensor<i32>, %[[FLAG:.*]]: tensor<i1>, %[[X:.*]]: tensor<8xf32>)
// CHECK-DAG:     %[[SINE:.*]] = stablehlo.sine %[[X]]
// CHECK-DAG:     %[[ZERO:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK:         %[[LAST:.*]] = stablehlo.compare NE, %[[I]], %[[ZERO]]
// CHECK-NEXT:    %[[BY_NUMBER:.*]] = stablehlo.select %[[LAST]], %[[SINE]], %[[X]]
// CHECK-NEXT:    %[[NEGATED:.*]] = stablehlo.negate %[[BY_NUMBER]]
// CHECK-NEXT:    %[[BY_FLAG:.*]] = stablehlo.select %[[FLAG]], %[[BY_NUMBER]], %[[NEGATED]]
// CHECK-NEXT:    return %[[BY_FLAG]]
func.func public @main(%i: tensor<i32>, %flag: tensor<i1>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "stablehlo.case"(%i) ({
    stablehlo.return %x : tensor<8xf32>
  }, {
    %1 = stablehlo.sine %x : tensor<8xf32>
    stablehlo.return %1 : tensor<8xf32>
  }) : (tensor<i32>) -> tensor<8xf32>
  %2 = "stablehlo.if"(%flag) ({
    stablehlo.return %0 : tensor<8xf32>
  }, {
    %3 = stablehlo.negate %0 : tensor<8xf32>
    stablehlo.return %3 : tensor<8xf32>
  }) : (tensor<i1>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}

// -----

// Of conditionals one inside the other, too, nothing is left.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[A:.*]]: tensor<i1>, %[[B:.*]]: tensor<i1>, %[[X:.*]]: tensor<8xf32>)
// CHECK:         %[[INNER:.*]] = stablehlo.select %[[B]], %{{.*}}, %[[X]]
// CHECK:         %[[OUTER:.*]] = stablehlo.select %[[A]], %[[INNER]], %[[X]]
// CHECK-NEXT:    return %[[OUTER]]
func.func public @main(%a: tensor<i1>, %b: tensor<i1>, %x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "stablehlo.if"(%a) ({
    %1 = "stablehlo.if"(%b) ({
      %2 = stablehlo.negate %x : tensor<8xf32>
      stablehlo.return %2 : tensor<8xf32>
    }, {
      stablehlo.return %x : tensor<8xf32>
    }) : (tensor<i1>) -> tensor<8xf32>
    stablehlo.return %1 : tensor<8xf32>
  }, {
    stablehlo.return %x : tensor<8xf32>
  }) : (tensor<i1>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
