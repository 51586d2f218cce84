// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals,outline-stages,unroll-microbatches | filecheck %s

// The step of a GPT: sixteen calls for two stages, four microbatches, forward and backward, in the order of 1F1B; and
// the optimizer after them, as before. The first forward of stage 1 comes before the first backward of stage 0.

// CHECK:       jaxpp.meshes = 2 : i64
// CHECK-LABEL: func.func public @main(
// CHECK-NOT:     stablehlo.while
// CHECK:         %[[F0:.*]]:14 = call @forward_0(%[[BATCH:[^,]*]], %[[I0:[^,]*]], {{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[I1:.*]] = stablehlo.constant dense<1> : tensor<i32>
// CHECK-NEXT:    call @forward_0(%[[BATCH]], %[[I1]], {{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64
// CHECK-NEXT:    %[[F1:.*]]:14 = call @forward_1(%[[F0]]#13, {{.*}}) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[B1:.*]]:7 = call @backward_1(%[[BATCH]], %[[I0]], %[[F1]]#1, {{.*}}) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64
// CHECK-NEXT:    %[[B0:.*]]:6 = call @backward_0(%[[BATCH]], %[[I0]], %[[F0]]#1, {{.*}}, %[[B1]]#1, {{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64
// CHECK-NEXT:    call @forward_1({{.*}}) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64
// CHECK-NEXT:    %[[NEXT:.*]]:7 = call @backward_1(%[[BATCH]], %[[I1]], {{.*}}, %[[B1]]#2, %[[B1]]#3, %[[B1]]#4, %[[B1]]#5, %[[B1]]#6) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64
// CHECK-COUNT-8: = call @{{(forward|backward)}}_
// CHECK:         %[[LAST:.*]]:6 = call @backward_0({{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 3 : i64
// CHECK-NOT:     = call @
// CHECK:         stablehlo.sqrt
// CHECK:         return
