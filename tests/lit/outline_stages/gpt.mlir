// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals,outline-stages | filecheck %s

// The step of a GPT with two stages, a mark after each: four tasks, and only activations between the stages. The batch
// is an argument of those that read tokens: the embedding, the loss, and the gradient of the embedding. No causal mask
// and no other truth values are kept from a forward to its backward; each task that needs one makes it.

// CHECK-LABEL: func.func public @main(
// CHECK:           stablehlo.while(%[[I:[^ ]*]] =
// CHECK:             %[[F0:.*]]:14 = func.call @forward_0(%[[BATCH:[^,]*]], %[[I]], {{.*}}) {jaxpp.stage = 0 : i64} : (tensor<4x2x5xi32>, tensor<i32>, tensor<16x8xf32>,
// CHECK-NEXT:        %[[F1:.*]]:14 = func.call @forward_1(%[[F0]]#13, {{.*}}) {jaxpp.stage = 1 : i64} : (tensor<2x4x8xf32>, tensor<8x3x2x4xf32>,
// CHECK-NEXT:        %[[B1:.*]]:7 = func.call @backward_1(%[[BATCH]], %[[I]], %[[F1]]#1, {{.*}}) {jaxpp.stage = 1 : i64}
// CHECK-NEXT:        %[[B0:.*]]:6 = func.call @backward_0(%[[BATCH]], %[[I]], %[[F0]]#1, {{.*}}, %[[B1]]#1, {{.*}}) {jaxpp.stage = 0 : i64}
// CHECK-NEXT:        stablehlo.return %{{.*}}, %[[B1]]#2, %[[B0]]#0,
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      ) -> (
// CHECK-NOT:       i1>
// CHECK-SAME:      ) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK:         "stablehlo.gather"
// CHECK:         stablehlo.select {{.*}} : tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>
// CHECK:         return
// CHECK-LABEL: func.func private @forward_1(
// CHECK-NOT:       tensor<4x2x5xi32>
// CHECK-SAME:      ) -> (
// CHECK-NOT:       i1>
// CHECK-SAME:      ) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64}
// CHECK:         stablehlo.select {{.*}} : tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>
// CHECK:         return
// CHECK-LABEL: func.func private @backward_1(
// CHECK-SAME:      attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64}
// CHECK:         stablehlo.compare GE, {{.*}} : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
// CHECK:         stablehlo.compare GT, {{.*}} -> tensor<2x4x16xi1>
// CHECK:         stablehlo.log
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK:         stablehlo.compare GE, {{.*}} : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
// CHECK:         "stablehlo.scatter"
