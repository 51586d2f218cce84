// RUN: jaxpp-opt %s --pipeline mpmd --schedule 1f1b --meshes 2 -o %t
// RUN: jaxpp-execute %t --reference %s | filecheck %s

// A training step that jax.jit lowered, with a lax.scan over microbatches and marks that were put in by hand.

// CHECK: 3 of 3 results agree with plain_module.mlir
module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32x32xf32>, %arg1: tensor<32x32xf32>, %arg2: tensor<4x8x32xf32>, %arg3: tensor<4x8x32xf32>) -> (tensor<32x32xf32>, tensor<32x32xf32>, tensor<f32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %2:8 = stablehlo.while(%iterArg = %arg2, %iterArg_4 = %arg3, %iterArg_5 = %arg0, %iterArg_6 = %arg1, %iterArg_7 = %c, %iterArg_8 = %cst_1, %iterArg_9 = %0, %iterArg_10 = %1) : tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<i32>, tensor<f32>, tensor<32x32xf32>, tensor<32x32xf32>
    cond {
      %c_11 = stablehlo.constant dense<4> : tensor<i32>
      %9 = stablehlo.compare LT, %iterArg_7, %c_11, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %9 : tensor<i1>
    } do {
      %9 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_7) : (tensor<4x8x32xf32>, tensor<i32>) -> tensor<8x32xf32>
      %10 = func.call @dynamic_index_in_dim(%iterArg_4, %iterArg_7) : (tensor<4x8x32xf32>, tensor<i32>) -> tensor<8x32xf32>
      %11:3 = func.call @closed_call(%iterArg_5, %iterArg_6, %iterArg_8, %iterArg_9, %iterArg_10, %9, %10) : (tensor<32x32xf32>, tensor<32x32xf32>, tensor<f32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<8x32xf32>, tensor<8x32xf32>) -> (tensor<f32>, tensor<32x32xf32>, tensor<32x32xf32>)
      %c_11 = stablehlo.constant dense<1> : tensor<i32>
      %12 = stablehlo.add %iterArg_7, %c_11 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_4, %iterArg_5, %iterArg_6, %12, %11#0, %11#1, %11#2 : tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>, tensor<i32>, tensor<f32>, tensor<32x32xf32>, tensor<32x32xf32>
    }
    %cst_2 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %4 = stablehlo.multiply %3, %2#6 : tensor<32x32xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<32x32xf32>
    %cst_3 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %7 = stablehlo.multiply %6, %2#7 : tensor<32x32xf32>
    %8 = stablehlo.subtract %arg1, %7 : tensor<32x32xf32>
    return %5, %8, %2#5 : tensor<32x32xf32>, tensor<32x32xf32>, tensor<f32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<4x8x32xf32>, %arg1: tensor<i32>) -> tensor<8x32xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 8, 32] : (tensor<4x8x32xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x32xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x8x32xf32>) -> tensor<8x32xf32>
    return %1 : tensor<8x32xf32>
  }
  func.func private @closed_call(%arg0: tensor<32x32xf32>, %arg1: tensor<32x32xf32>, %arg2: tensor<f32>, %arg3: tensor<32x32xf32>, %arg4: tensor<32x32xf32>, %arg5: tensor<8x32xf32>, %arg6: tensor<8x32xf32>) -> (tensor<f32>, tensor<32x32xf32>, tensor<32x32xf32>) {
    %0 = stablehlo.dot_general %arg5, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
    %1 = stablehlo.tanh %0 : tensor<8x32xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %1 : tensor<8x32xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x32xf32>
    %3 = stablehlo.subtract %2, %1 : tensor<8x32xf32>
    %4 = stablehlo.dot_general %m0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
    %5 = stablehlo.tanh %4 : tensor<8x32xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8x32xf32>
    %7 = stablehlo.subtract %6, %5 : tensor<8x32xf32>
    %8 = stablehlo.subtract %5, %arg6 : tensor<8x32xf32>
    %9 = stablehlo.multiply %8, %8 : tensor<8x32xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<8x32xf32>
    %11 = stablehlo.multiply %10, %8 : tensor<8x32xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %12 = stablehlo.reduce(%9 init: %cst_2) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x32xf32>, tensor<f32>) -> tensor<f32>
    %cst_3 = stablehlo.constant dense<2.560000e+02> : tensor<f32>
    %13 = stablehlo.divide %12, %cst_3 : tensor<f32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %13 : tensor<f32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_5 = stablehlo.constant dense<2.560000e+02> : tensor<f32>
    %14 = stablehlo.divide %cst_4, %cst_5 : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [] : (tensor<f32>) -> tensor<8x32xf32>
    %16 = stablehlo.multiply %15, %11 : tensor<8x32xf32>
    %17 = stablehlo.multiply %16, %7 : tensor<8x32xf32>
    %18 = stablehlo.multiply %17, %5 : tensor<8x32xf32>
    %19 = stablehlo.add %17, %18 : tensor<8x32xf32>
    %20 = stablehlo.dot_general %19, %m0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<32x32xf32>
    %21 = stablehlo.transpose %20, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %22 = stablehlo.dot_general %19, %arg1, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
    %m3 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "backward", name = ""}} %22 : tensor<8x32xf32>
    %23 = stablehlo.multiply %m3, %3 : tensor<8x32xf32>
    %24 = stablehlo.multiply %23, %1 : tensor<8x32xf32>
    %25 = stablehlo.add %23, %24 : tensor<8x32xf32>
    %26 = stablehlo.dot_general %25, %arg5, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<32x32xf32>
    %27 = stablehlo.transpose %26, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %28 = stablehlo.convert %arg2 : tensor<f32>
    %29 = stablehlo.add %28, %m1 : tensor<f32>
    %30 = stablehlo.add %arg3, %27 : tensor<32x32xf32>
    %31 = stablehlo.add %arg4, %21 : tensor<32x32xf32>
    return %29, %30, %31 : tensor<f32>, tensor<32x32xf32>, tensor<32x32xf32>
  }
}
