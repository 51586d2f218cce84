// RUN: not jaxpp-opt %s -p inline-calls --split-input-file 2>&1 | filecheck %s

// CHECK: composite_marks_invalid.mlir:[[# @LINE + 6]]:8: error: unknown form of jaxpp.boundary: {name = "", phase = "sideways", stage = 0 : i64}
// CHECK-NEXT: a stage mark has the form {stage = 0 : i64, phase = "forward" | "backward", name = "..."}
func.func private @same(%a: tensor<2xf32>) -> tensor<2xf32> {
  return %a : tensor<2xf32>
}
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = stablehlo.composite "jaxpp.stage_boundary" %x {composite_attributes = {stage = 0 : i64, phase = "sideways"}, decomposition = @same} : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}

// -----

// CHECK: error: unknown form of jaxpp.boundary: {name = ""}
func.func private @same(%a: tensor<2xf32>) -> tensor<2xf32> {
  return %a : tensor<2xf32>
}
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %y = stablehlo.composite "jaxpp.stage_boundary" %x {decomposition = @same} : (tensor<2xf32>) -> tensor<2xf32>
  return %y : tensor<2xf32>
}

// -----

// CHECK: error: a composite "jaxpp.stage_boundary" must return what it takes
func.func private @same(%a: tensor<2xf32>) -> tensor<1xf32> {
  %0 = stablehlo.slice %a [0:1] : (tensor<2xf32>) -> tensor<1xf32>
  return %0 : tensor<1xf32>
}
func.func public @main(%x: tensor<2xf32>) -> tensor<1xf32> {
  %y = stablehlo.composite "jaxpp.stage_boundary" %x {decomposition = @same} : (tensor<2xf32>) -> tensor<1xf32>
  return %y : tensor<1xf32>
}
