// RUN: jaxpp-opt %s --split-input-file -p split-conditionals | filecheck %s

// A product is computed in its branch alone. Results that share none get conditionals of their own; the norm before it
// is computed in any case, and so is what needs no product.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[I:.*]]: tensor<i32>, %[[X:.*]]: tensor<8x8xf32>, %[[Y:.*]]: tensor<8x8xf32>)
// CHECK:         %[[SUM:.*]] = stablehlo.add %[[X]], %[[Y]]
// CHECK:         %[[CHOSEN:.*]] = stablehlo.select %{{.*}}, %[[SUM]], %[[X]]
// CHECK:         %[[FIRST:.*]]:2 = "stablehlo.case"(%[[I]]) ({
// CHECK-NEXT:      stablehlo.return %[[X]], %[[Y]]
// CHECK-NEXT:    }, {
// CHECK-NEXT:      %[[SQUARE:.*]] = stablehlo.dot_general %[[SUM]], %[[SUM]]
// CHECK-NEXT:      %[[NEGATED:.*]] = stablehlo.negate %[[SQUARE]]
// CHECK-NEXT:      stablehlo.return %[[SQUARE]], %[[NEGATED]]
// CHECK:         %[[SECOND:.*]] = "stablehlo.case"(%[[I]]) ({
// CHECK-NEXT:      stablehlo.return %[[Y]]
// CHECK-NEXT:    }, {
// CHECK-NEXT:      %[[PRODUCT:.*]] = stablehlo.dot_general %[[X]], %[[Y]]
// CHECK-NEXT:      stablehlo.return %[[PRODUCT]]
// CHECK:         return %[[FIRST]]#0, %[[FIRST]]#1, %[[SECOND]], %[[CHOSEN]]
func.func public @main(%i: tensor<i32>, %x: tensor<8x8xf32>, %y: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) {
  %0:4 = "stablehlo.case"(%i) ({
    stablehlo.return %x, %y, %y, %x : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  }, {
    %1 = stablehlo.add %x, %y : tensor<8x8xf32>
    %2 = stablehlo.dot_general %1, %1, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %3 = stablehlo.negate %2 : tensor<8x8xf32>
    %4 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %2, %3, %4, %1 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
  }) : (tensor<i32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>)
  return %0#0, %0#1, %0#2, %0#3 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

// Of three branches none is computed in any case, but each result is chosen by itself.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[I:.*]]: tensor<i32>, %[[X:.*]]: tensor<8xf32>, %[[Y:.*]]: tensor<8xf32>)
// CHECK-NEXT:    %[[FIRST:.*]] = "stablehlo.case"(%[[I]]) ({
// CHECK-NEXT:      stablehlo.return %[[X]]
// CHECK-NEXT:    }, {
// CHECK-NEXT:      %[[NEGATED:.*]] = stablehlo.negate %[[X]]
// CHECK-NEXT:      stablehlo.return %[[NEGATED]]
// CHECK-NEXT:    }, {
// CHECK-NEXT:      stablehlo.return %[[X]]
// CHECK-NEXT:    })
// CHECK-NEXT:    %[[SECOND:.*]] = "stablehlo.case"(%[[I]]) ({
// CHECK-NEXT:      stablehlo.return %[[Y]]
// CHECK-NEXT:    }, {
// CHECK-NEXT:      stablehlo.return %[[Y]]
// CHECK-NEXT:    }, {
// CHECK-NEXT:      %[[SINE:.*]] = stablehlo.sine %[[Y]]
// CHECK-NEXT:      stablehlo.return %[[SINE]]
// CHECK-NEXT:    })
// CHECK-NEXT:    return %[[FIRST]], %[[SECOND]]
func.func public @main(%i: tensor<i32>, %x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0:2 = "stablehlo.case"(%i) ({
    stablehlo.return %x, %y : tensor<8xf32>, tensor<8xf32>
  }, {
    %1 = stablehlo.negate %x : tensor<8xf32>
    stablehlo.return %1, %y : tensor<8xf32>, tensor<8xf32>
  }, {
    %1 = stablehlo.sine %y : tensor<8xf32>
    stablehlo.return %x, %1 : tensor<8xf32>, tensor<8xf32>
  }) : (tensor<i32>) -> (tensor<8xf32>, tensor<8xf32>)
  return %0#0, %0#1 : tensor<8xf32>, tensor<8xf32>
}

// -----

// A ragged product is a product, though CHLO has it; a square is none.

// CHECK-LABEL: func.func public @main(
// CHECK:         chlo.square
// CHECK:         stablehlo.select
// CHECK:         "stablehlo.case"
// CHECK:           chlo.ragged_dot
func.func public @main(%i: tensor<i32>, %x: tensor<8x8xf32>, %y: tensor<2x8x8xf32>, %sizes: tensor<2xi32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0:2 = "stablehlo.case"(%i) ({
    stablehlo.return %x, %x : tensor<8x8xf32>, tensor<8x8xf32>
  }, {
    %1 = chlo.square %x : tensor<8x8xf32> -> tensor<8x8xf32>
    %2 = "chlo.ragged_dot"(%x, %y, %sizes) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<8x8xf32>, tensor<2x8x8xf32>, tensor<2xi32>) -> tensor<8x8xf32>
    stablehlo.return %1, %2 : tensor<8x8xf32>, tensor<8x8xf32>
  }) : (tensor<i32>) -> (tensor<8x8xf32>, tensor<8x8xf32>)
  return %0#0, %0#1 : tensor<8x8xf32>, tensor<8x8xf32>
}
