// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,split-conditionals | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop | filecheck %s

// The step of a GPT has no conditional: clipping chooses by a select for each leaf, after the loop, and stays as it is.

// CHECK:         stablehlo.while
// CHECK:         %[[TOO_BIG:.*]] = stablehlo.compare LT, %{{.*}}, %{{.*}}, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
// CHECK-COUNT-10: stablehlo.select %[[TOO_BIG]]
// CHECK-NOT:     stablehlo.select %[[TOO_BIG]]
// CHECK:         return
