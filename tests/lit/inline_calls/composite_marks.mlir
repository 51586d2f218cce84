// RUN: jaxpp-opt %s -p inline-calls | filecheck %s
// RUN: jaxpp-opt %s -p 'inline-calls,find-microbatch-loop{schedule=gpipe meshes=2}' | filecheck %s --check-prefix=FOUND

// A producer that can't put attributes on a barrier marks the ends of stages by composites.

// CHECK-LABEL: func.func public @main(
// CHECK: stablehlo.while
// CHECK: %[[H:.*]] = stablehlo.sine
// CHECK-NEXT: %[[MARKED:.*]]:2 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}} %[[H]], %[[H]]
// CHECK-NEXT: stablehlo.cosine %[[MARKED]]#1
// CHECK-NOT: composite
// CHECK-NOT: @nothing
// FOUND: jaxpp.microbatch_loop = {
func.func private @nothing(%a: tensor<2xf32>, %b: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  return %a, %b : tensor<2xf32>, tensor<2xf32>
}
func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %sum = %x) : tensor<i32>, tensor<2xf32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %h = stablehlo.sine %x : tensor<2xf32>
    %y:2 = stablehlo.composite "jaxpp.stage_boundary" %h, %h {composite_attributes = {stage = 0 : i64, phase = "forward"}, decomposition = @nothing} : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
    %z = stablehlo.cosine %y#1 : tensor<2xf32>
    %s = stablehlo.add %sum, %z : tensor<2xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %s : tensor<i32>, tensor<2xf32>
  }
  return %0#1 : tensor<2xf32>
}
