// RUN: jaxpp-opt %s -p inline-calls --validate | filecheck %s

// A function that is called with a constant: which branch it takes shows where it is inlined, also through another one.

// CHECK-LABEL: func.func public @main(
// CHECK-NOT:     stablehlo.case
// CHECK:         %[[Y:.*]] = stablehlo.sine %{{.*}} : tensor<f32>
// CHECK-NEXT:    return %[[Y]]
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %y = call @through(%one, %x) : (tensor<i32>, tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
func.func private @through(%i: tensor<i32>, %x: tensor<f32>) -> tensor<f32> {
  %y = call @chooses(%i, %x) : (tensor<i32>, tensor<f32>) -> tensor<f32>
  return %y : tensor<f32>
}
func.func private @chooses(%i: tensor<i32>, %x: tensor<f32>) -> tensor<f32> {
  %y = "stablehlo.case"(%i) ({
    %a = stablehlo.cosine %x : tensor<f32>
    stablehlo.return %a : tensor<f32>
  }, {
    %b = stablehlo.sine %x : tensor<f32>
    stablehlo.return %b : tensor<f32>
  }) : (tensor<i32>) -> tensor<f32>
  return %y : tensor<f32>
}
