// RUN: jaxpp-opt %s -p "find-microbatch-loop{schedule=gpipe meshes=2},number-stages{cuts=2,1}" | filecheck %s
// RUN: jaxpp-opt %s -p "find-microbatch-loop{schedule=gpipe meshes=3},number-stages" | filecheck %s --check-prefix=ALL

// Of three layers the first two become one stage: their mark goes, in the backward too. What remains is renumbered.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while(%{{[^ ]*}} = %{{[^ ]*}}, %[[X:[^ ]*]] = %{{[^ ]*}})
// CHECK-SAME:      attributes {jaxpp.microbatch_loop = {{{.*}}length = 3 : i64, {{.*}}, stages = 2 : i64
// CHECK:           %[[Y0:.*]] = stablehlo.sine %[[X]]
// CHECK-NEXT:      %[[Y1:.*]] = stablehlo.cosine %[[Y0]]
// CHECK-NEXT:      %[[M1:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}} %[[Y1]]
// CHECK-NEXT:      %[[Y2:.*]] = stablehlo.tanh %[[M1]]
// CHECK-NEXT:      %[[M2:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}} %[[Y2]]
// CHECK-NEXT:      %[[B2:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}} %[[M2]]
// CHECK-NEXT:      %[[D2:.*]] = stablehlo.negate %[[B2]]
// CHECK-NEXT:      %[[B1:.*]] = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}} %[[D2]]
// CHECK-NEXT:      %[[D1:.*]] = stablehlo.exponential %[[B1]]
// CHECK-NEXT:      %[[D0:.*]] = stablehlo.log %[[D1]]

// Without cuts every mark stays.
// ALL-COUNT-6: optimization_barrier
func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %c0, %x = %a) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %y0 = stablehlo.sine %x : tensor<4xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %y0 : tensor<4xf32>
    %y1 = stablehlo.cosine %m0 : tensor<4xf32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %y1 : tensor<4xf32>
    %y2 = stablehlo.tanh %m1 : tensor<4xf32>
    %m2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 2 : i64, phase = "forward", name = ""}} %y2 : tensor<4xf32>
    %b2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 2 : i64, phase = "backward", name = ""}} %m2 : tensor<4xf32>
    %d2 = stablehlo.negate %b2 : tensor<4xf32>
    %b1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "backward", name = ""}} %d2 : tensor<4xf32>
    %d1 = stablehlo.exponential %b1 : tensor<4xf32>
    %b0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %d1 : tensor<4xf32>
    %d0 = stablehlo.log %b0 : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %d0 : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
