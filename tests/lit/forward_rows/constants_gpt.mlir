// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,unroll-loops,forward-rows | filecheck %s

// In the step of a GPT 33 of 273 constants are left. Each norm of the forward has the same epsilon, which is there once,
// in the body of the loop; so is each of AdamW's factors, behind the loop. All gradients of one shape start from the same
// zeros.

// CHECK-LABEL: func.func public @main(
// CHECK:       %[[ZERO:.*]] = stablehlo.constant dense<0.000000e+00> : tensor<f32>
// CHECK:       %[[ZEROS:.*]] = stablehlo.broadcast_in_dim %[[ZERO]], dims = [] : (tensor<f32>) -> tensor<16x8xf32>
// CHECK-NOT:   stablehlo.broadcast_in_dim {{.*}} -> tensor<16x8xf32>
// CHECK:       stablehlo.while({{.*}} = %[[ZEROS]], {{.*}} = %[[ZEROS]], {{.*}} attributes {jaxpp.microbatch_loop = {
// CHECK:         stablehlo.constant dense<9.99999974E-6> : tensor<f32>
// CHECK-NOT:     stablehlo.constant dense<9.99999974E-6> : tensor<f32>
// CHECK:         stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}}
// CHECK-NOT:     stablehlo.constant dense<9.99999974E-6> : tensor<f32>
// CHECK:         stablehlo.return
// CHECK:       stablehlo.constant dense<9.990000e-01> : tensor<f32>
// CHECK-NOT:   stablehlo.constant dense<9.990000e-01> : tensor<f32>
// CHECK:       return
