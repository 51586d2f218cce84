// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls | filecheck %s

// JAX lowers jax.nn.relu, jax.nn.log_softmax, jnp.where and the slices of the batch as functions. In the step of a GPT
// none of them is left, and the marks stay where they are: at the top of the microbatch loop, two forward and two
// backward, the same gradient arithmetic between them.

// CHECK-LABEL: func.func public @main(
// CHECK-NOT:   call @
// CHECK:       stablehlo.while({{.*}} attributes {jaxpp.microbatch_loop = {length = 4 : i64, schedule = "schedule: 1f1b
// CHECK:         stablehlo.dynamic_slice {{.*}} sizes = [1, 2, 5]
// CHECK:         stablehlo.select {{.*}} : tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>
// CHECK:         stablehlo.maximum {{.*}} : tensor<2x4x16xf32>
// CHECK:         stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}}
// CHECK:         stablehlo.maximum {{.*}} : tensor<2x4x16xf32>
// CHECK:         stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}}
// CHECK:         stablehlo.log {{.*}} : tensor<2x4x1xf32>
// CHECK:         stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}}
// CHECK:         stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}}
// CHECK:         stablehlo.return
// CHECK-NOT:   func.func
