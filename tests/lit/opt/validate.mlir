// RUN: jaxpp-opt %s --pipeline mpmd --schedule 1f1b --meshes 2 --validate -o %t 2>&1 | filecheck %s
// RUN: jaxpp-opt %t -p verify-program --validate 2>&1 | filecheck %s --check-prefix=PROGRAM

// A training step of two stages, two-way data parallel, as `jaxpp.lowering` makes it: the module is run after every
// pass, the program by the reference interpreter, on two virtual devices, with random inputs.

// CHECK: validated: 3 results agree after each of {{[0-9]+}} passes; largest difference {{[0-9.]+e-(0[6-9]|[1-9][0-9])|0.0e\+00}} of
// PROGRAM: validated: 3 results agree after each of 1 passes; largest difference 0.0e+00 of
module @jit_step attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%arg0: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<4x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg2: tensor<3x2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}, {}]>}) -> (tensor<4x4xf32> {jax.result_info = "result[0][0]", jaxpp.feeds = 0 : i64}, tensor<4x4xf32> {jax.result_info = "result[0][1]", jaxpp.feeds = 1 : i64}, tensor<f32> {jax.result_info = "result[1]"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %3:7 = stablehlo.while(%iterArg = %arg2, %iterArg_6 = %arg0, %iterArg_7 = %arg1, %iterArg_8 = %c, %iterArg_9 = %0, %iterArg_10 = %1, %iterArg_11 = %2) : tensor<3x2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<3xf32>, tensor<4x4xf32>, tensor<4x4xf32> attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
    cond {
      %c_12 = stablehlo.constant dense<3> : tensor<i32>
      %12 = stablehlo.compare LT, %iterArg_8, %c_12, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %12 : tensor<i1>
    } do {
      %c_12 = stablehlo.constant dense<1> : tensor<i32>
      %12 = stablehlo.add %iterArg_8, %c_12 : tensor<i32>
      %13 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_8) : (tensor<3x2x4xf32>, tensor<i32>) -> tensor<2x4xf32>
      %14 = stablehlo.dot_general %13, %iterArg_6, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %15 = stablehlo.tanh %14 : tensor<2x4xf32>
      %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %16 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
      %17 = stablehlo.subtract %16, %15 : tensor<2x4xf32>
      %18 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}} %15 : tensor<2x4xf32>
      %19 = stablehlo.dot_general %18, %iterArg_7, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %20 = stablehlo.tanh %19 : tensor<2x4xf32>
      %cst_14 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %21 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
      %22 = stablehlo.subtract %21, %20 : tensor<2x4xf32>
      %23 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}} %20 : tensor<2x4xf32>
      %24 = stablehlo.multiply %23, %23 : tensor<2x4xf32>
      %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %25 = stablehlo.reduce(%24 init: %cst_15) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<f32>
      %cst_16 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %26 = stablehlo.divide %25, %cst_16 : tensor<f32>
      %cst_17 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %cst_18 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %27 = stablehlo.divide %cst_17, %cst_18 : tensor<f32>
      %28 = stablehlo.broadcast_in_dim %27, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
      %29 = stablehlo.multiply %23, %28 : tensor<2x4xf32>
      %30 = stablehlo.multiply %28, %23 : tensor<2x4xf32>
      %31 = stablehlo.add %29, %30 : tensor<2x4xf32>
      %32 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}} %31 : tensor<2x4xf32>
      %33 = stablehlo.multiply %32, %22 : tensor<2x4xf32>
      %34 = stablehlo.multiply %33, %20 : tensor<2x4xf32>
      %35 = stablehlo.add %33, %34 : tensor<2x4xf32>
      %36 = stablehlo.dot_general %35, %18, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
      %37 = stablehlo.transpose %36, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %38 = stablehlo.dot_general %35, %iterArg_7, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<4x4xf32>) -> tensor<2x4xf32>
      %39 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}} %38 : tensor<2x4xf32>
      %40 = stablehlo.multiply %39, %17 : tensor<2x4xf32>
      %41 = stablehlo.multiply %40, %15 : tensor<2x4xf32>
      %42 = stablehlo.add %40, %41 : tensor<2x4xf32>
      %43 = stablehlo.dot_general %42, %13, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4xf32>, tensor<2x4xf32>) -> tensor<4x4xf32>
      %44 = stablehlo.transpose %43, dims = [1, 0] : (tensor<4x4xf32>) -> tensor<4x4xf32>
      %45 = func.call @dynamic_update_index_in_dim(%iterArg_9, %26, %iterArg_8) : (tensor<3xf32>, tensor<f32>, tensor<i32>) -> tensor<3xf32>
      %46 = stablehlo.add %iterArg_10, %44 : tensor<4x4xf32>
      %47 = stablehlo.add %iterArg_11, %37 : tensor<4x4xf32>
      stablehlo.return %iterArg, %iterArg_6, %iterArg_7, %12, %45, %46, %47 : tensor<3x2x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>, tensor<i32>, tensor<3xf32>, tensor<4x4xf32>, tensor<4x4xf32>
    }
    %cst_2 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %5 = stablehlo.multiply %4, %3#5 : tensor<4x4xf32>
    %6 = stablehlo.subtract %arg0, %5 : tensor<4x4xf32>
    %cst_3 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
    %8 = stablehlo.multiply %7, %3#6 : tensor<4x4xf32>
    %9 = stablehlo.subtract %arg1, %8 : tensor<4x4xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %10 = stablehlo.reduce(%3#4 init: %cst_4) applies stablehlo.add across dimensions = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
    %cst_5 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %11 = stablehlo.divide %10, %cst_5 : tensor<f32>
    return %6, %9, %11 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<f32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<3x2x4xf32>, %arg1: tensor<i32>) -> tensor<2x4xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 2, 4] : (tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x4xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x4xf32>) -> tensor<2x4xf32>
    return %1 : tensor<2x4xf32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<3xf32>, %arg1: tensor<f32>, %arg2: tensor<i32>) -> tensor<3xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2 : (tensor<3xf32>, tensor<1xf32>, tensor<i32>) -> tensor<3xf32>
    return %1 : tensor<3xf32>
  }
}

