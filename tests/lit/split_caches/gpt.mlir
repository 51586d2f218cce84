// RUN: jaxpp-opt %S/../Inputs/decoder.mlir -p inline-calls,find-microbatch-loop,unroll-loops,forward-rows,number-stages,assign-stages,split-caches,propagate-shardings,place-residuals,outline-stages,add-tasks | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt.mlir --pipeline mpmd | filecheck %s --check-prefix=WHOLE

// Forwards of a decoder take the rows of each slice, and return their own: no array of the whole sequence. A model of
// whole sequences stays as it is.

// CHECK-LABEL: func.func private @forward_0(
// CHECK-NOT:     %arg{{[0-9]+}}: tensor<2x12x8xf32>
// CHECK:         stablehlo.concatenate %{{.*}}, dim = 1 : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<2x12x8xf32>
// CHECK-NOT:     return {{.*}}tensor<2x12x8xf32>
// CHECK-LABEL: func.func private @forward_1(

// WHOLE-NOT:   tensor<2x6x8xf32>
