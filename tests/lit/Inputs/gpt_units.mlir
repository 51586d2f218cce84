// Written by gpt_units.py.
module @jit_train_step attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2, "model"=2]>
  func.func public @main(%arg0: tensor<16x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {"data"}]>}, %arg1: tensor<2x4x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}, {"data"}]>}, %arg2: tensor<8x3x2x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}, {"model"}, {}]>}, %arg3: tensor<8x16xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}, %arg4: tensor<16x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {"data"}]>}, %arg5: tensor<2x4x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}, {"data"}]>}, %arg6: tensor<8x3x2x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}, {"model"}, {}]>}, %arg7: tensor<8x16xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>}, %arg8: tensor<16x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg9: tensor<4x2x5xi32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}, {}]>}) -> (tensor<16x8xf32> {jax.result_info = "result[0]['blocks'][0]['down']", jaxpp.feeds = 0 : i64}, tensor<2x4x8xf32> {jax.result_info = "result[0]['blocks'][0]['out']", jaxpp.feeds = 1 : i64}, tensor<8x3x2x4xf32> {jax.result_info = "result[0]['blocks'][0]['qkv']", jaxpp.feeds = 2 : i64}, tensor<8x16xf32> {jax.result_info = "result[0]['blocks'][0]['up']", jaxpp.feeds = 3 : i64}, tensor<16x8xf32> {jax.result_info = "result[0]['blocks'][1]['down']", jaxpp.feeds = 4 : i64}, tensor<2x4x8xf32> {jax.result_info = "result[0]['blocks'][1]['out']", jaxpp.feeds = 5 : i64}, tensor<8x3x2x4xf32> {jax.result_info = "result[0]['blocks'][1]['qkv']", jaxpp.feeds = 6 : i64}, tensor<8x16xf32> {jax.result_info = "result[0]['blocks'][1]['up']", jaxpp.feeds = 7 : i64}, tensor<16x8xf32> {jax.result_info = "result[0]['embed']", jaxpp.feeds = 8 : i64}, tensor<f32> {jax.result_info = "result[1]"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %10:21 = stablehlo.while(%iterArg = %arg9, %iterArg_20 = %arg8, %iterArg_21 = %arg2, %iterArg_22 = %arg1, %iterArg_23 = %arg3, %iterArg_24 = %arg0, %iterArg_25 = %arg6, %iterArg_26 = %arg5, %iterArg_27 = %arg7, %iterArg_28 = %arg4, %iterArg_29 = %c, %iterArg_30 = %0, %iterArg_31 = %1, %iterArg_32 = %2, %iterArg_33 = %3, %iterArg_34 = %4, %iterArg_35 = %5, %iterArg_36 = %6, %iterArg_37 = %7, %iterArg_38 = %8, %iterArg_39 = %9) : tensor<4x2x5xi32>, tensor<16x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<i32>, tensor<4xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32> attributes {jaxpp.microbatch_loop = {length = 4 : i64, schedule = "schedule: 1f1b\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 .   0B0 0F2 0B1 0F3 0B2 .   0B3\0Amesh 1: .   1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"}}
    cond {
      %c_40 = stablehlo.constant dense<4> : tensor<i32>
      %40 = stablehlo.compare LT, %iterArg_29, %c_40, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %40 : tensor<i1>
    } do {
      %40 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_29) : (tensor<4x2x5xi32>, tensor<i32>) -> tensor<2x5xi32>
      %41 = stablehlo.slice %40 [0:2, 0:4] : (tensor<2x5xi32>) -> tensor<2x4xi32>
      %c_40 = stablehlo.constant dense<0> : tensor<i32>
      %42 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<i32>) -> tensor<2x4xi32>
      %43 = stablehlo.compare LT, %41, %42, SIGNED : (tensor<2x4xi32>, tensor<2x4xi32>) -> tensor<2x4xi1>
      %c_41 = stablehlo.constant dense<16> : tensor<i32>
      %44 = stablehlo.broadcast_in_dim %c_41, dims = [] : (tensor<i32>) -> tensor<2x4xi32>
      %45 = stablehlo.add %41, %44 : tensor<2x4xi32>
      %46 = stablehlo.select %43, %45, %41 : tensor<2x4xi1>, tensor<2x4xi32>
      %47 = stablehlo.broadcast_in_dim %46, dims = [0, 1] : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
      %48 = "stablehlo.gather"(%iterArg_20, %47) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xf32>, tensor<2x4x1xi32>) -> tensor<2x4x8xf32>
      %cst_42 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %49 = stablehlo.reduce(%48 init: %cst_42) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %50 = stablehlo.broadcast_in_dim %49, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_43 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %51 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %52 = stablehlo.divide %50, %51 : tensor<2x4x1xf32>
      %53 = stablehlo.broadcast_in_dim %52, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %54 = stablehlo.subtract %48, %53 : tensor<2x4x8xf32>
      %55 = stablehlo.multiply %54, %54 : tensor<2x4x8xf32>
      %cst_44 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %56 = stablehlo.reduce(%55 init: %cst_44) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %57 = stablehlo.broadcast_in_dim %56, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_45 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %58 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %59 = stablehlo.divide %57, %58 : tensor<2x4x1xf32>
      %cst_46 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %60 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %61 = stablehlo.add %59, %60 : tensor<2x4x1xf32>
      %62 = stablehlo.rsqrt %61 : tensor<2x4x1xf32>
      %63 = stablehlo.divide %62, %61 : tensor<2x4x1xf32>
      %cst_47 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %64 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %65 = stablehlo.multiply %64, %63 : tensor<2x4x1xf32>
      %66 = stablehlo.broadcast_in_dim %62, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %67 = stablehlo.multiply %54, %66 : tensor<2x4x8xf32>
      %68 = stablehlo.dot_general %iterArg_21, %67, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x3x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x2x4xf32>
      %69 = stablehlo.transpose %68, dims = [0, 3, 1, 4, 2] : (tensor<3x2x4x2x4xf32>) -> tensor<3x2x2x4x4xf32>
      %70 = stablehlo.slice %69 [0:1, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %71 = stablehlo.reshape %70 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %72 = stablehlo.slice %69 [1:2, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %73 = stablehlo.reshape %72 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %74 = stablehlo.slice %69 [2:3, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %75 = stablehlo.reshape %74 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %76 = stablehlo.dot_general %71, %73, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %cst_48 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %77 = stablehlo.reduce(%76 init: %cst_48) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %78 = stablehlo.reshape %77 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %79 = stablehlo.broadcast_in_dim %78, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %80 = stablehlo.compare EQ, %76, %79, FLOAT : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xi1>
      %81 = stablehlo.convert %80 : (tensor<2x2x4x4xi1>) -> tensor<2x2x4x4xf32>
      %cst_49 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %82 = stablehlo.reduce(%81 init: %cst_49) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %cst_50 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %83 = stablehlo.broadcast_in_dim %cst_50, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %84 = stablehlo.maximum %83, %77 : tensor<2x2x4xf32>
      %85 = stablehlo.compare EQ, %77, %84, FLOAT : (tensor<2x2x4xf32>, tensor<2x2x4xf32>) -> tensor<2x2x4xi1>
      %cst_51 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %86 = stablehlo.broadcast_in_dim %cst_51, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %cst_52 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %87 = stablehlo.broadcast_in_dim %cst_52, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %88 = stablehlo.select %85, %86, %87 : tensor<2x2x4xi1>, tensor<2x2x4xf32>
      %cst_53 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %89 = stablehlo.broadcast_in_dim %cst_53, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %90 = stablehlo.compare EQ, %89, %84, FLOAT : (tensor<2x2x4xf32>, tensor<2x2x4xf32>) -> tensor<2x2x4xi1>
      %cst_54 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %91 = stablehlo.broadcast_in_dim %cst_54, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %cst_55 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %92 = stablehlo.broadcast_in_dim %cst_55, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %93 = stablehlo.select %90, %91, %92 : tensor<2x2x4xi1>, tensor<2x2x4xf32>
      %94 = stablehlo.divide %88, %93 : tensor<2x2x4xf32>
      %95 = stablehlo.broadcast_in_dim %84, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %96 = stablehlo.broadcast_in_dim %95, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %97 = stablehlo.subtract %76, %96 : tensor<2x2x4x4xf32>
      %98 = stablehlo.exponential %97 : tensor<2x2x4x4xf32>
      %cst_56 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %99 = stablehlo.reduce(%98 init: %cst_56) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %100 = stablehlo.broadcast_in_dim %99, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %101 = stablehlo.broadcast_in_dim %100, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %102 = stablehlo.divide %98, %101 : tensor<2x2x4x4xf32>
      %103 = stablehlo.multiply %100, %100 : tensor<2x2x4x1xf32>
      %cst_57 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %104 = stablehlo.broadcast_in_dim %cst_57, dims = [] : (tensor<f32>) -> tensor<2x2x4x1xf32>
      %105 = stablehlo.divide %104, %103 : tensor<2x2x4x1xf32>
      %106 = stablehlo.dot_general %75, %102, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %107 = stablehlo.dot_general %106, %iterArg_22, contracting_dims = [2, 1] x [1, 0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
      %108 = stablehlo.add %48, %107 : tensor<2x4x8xf32>
      %109 = sdy.sharding_constraint %108 <@mesh, [{"data"}, {}, {}]> : tensor<2x4x8xf32>
      %110 = stablehlo.optimization_barrier {jaxpp.boundary} %109 : tensor<2x4x8xf32>
      %cst_58 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %111 = stablehlo.reduce(%110 init: %cst_58) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %112 = stablehlo.broadcast_in_dim %111, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_59 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %113 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %114 = stablehlo.divide %112, %113 : tensor<2x4x1xf32>
      %115 = stablehlo.broadcast_in_dim %114, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %116 = stablehlo.subtract %110, %115 : tensor<2x4x8xf32>
      %117 = stablehlo.multiply %116, %116 : tensor<2x4x8xf32>
      %cst_60 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %118 = stablehlo.reduce(%117 init: %cst_60) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %119 = stablehlo.broadcast_in_dim %118, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_61 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %120 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %121 = stablehlo.divide %119, %120 : tensor<2x4x1xf32>
      %cst_62 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %122 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %123 = stablehlo.add %121, %122 : tensor<2x4x1xf32>
      %124 = stablehlo.rsqrt %123 : tensor<2x4x1xf32>
      %125 = stablehlo.divide %124, %123 : tensor<2x4x1xf32>
      %cst_63 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %126 = stablehlo.broadcast_in_dim %cst_63, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %127 = stablehlo.multiply %126, %125 : tensor<2x4x1xf32>
      %128 = stablehlo.broadcast_in_dim %124, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %129 = stablehlo.multiply %116, %128 : tensor<2x4x8xf32>
      %130 = stablehlo.dot_general %129, %iterArg_23, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
      %131 = func.call @relu(%130) : (tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
      %cst_64 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %132 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %133 = stablehlo.compare GT, %130, %132, FLOAT : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xi1>
      %cst_65 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %134 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %135 = stablehlo.dot_general %131, %iterArg_24, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<16x8xf32>) -> tensor<2x4x8xf32>
      %136 = stablehlo.add %110, %135 : tensor<2x4x8xf32>
      %137 = sdy.sharding_constraint %136 <@mesh, [{"data"}, {}, {}]> : tensor<2x4x8xf32>
      %138 = stablehlo.optimization_barrier {jaxpp.boundary} %137 : tensor<2x4x8xf32>
      %139 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}} %138 : tensor<2x4x8xf32>
      %cst_66 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %140 = stablehlo.reduce(%139 init: %cst_66) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %141 = stablehlo.broadcast_in_dim %140, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_67 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %142 = stablehlo.broadcast_in_dim %cst_67, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %143 = stablehlo.divide %141, %142 : tensor<2x4x1xf32>
      %144 = stablehlo.broadcast_in_dim %143, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %145 = stablehlo.subtract %139, %144 : tensor<2x4x8xf32>
      %146 = stablehlo.multiply %145, %145 : tensor<2x4x8xf32>
      %cst_68 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %147 = stablehlo.reduce(%146 init: %cst_68) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %148 = stablehlo.broadcast_in_dim %147, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_69 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %149 = stablehlo.broadcast_in_dim %cst_69, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %150 = stablehlo.divide %148, %149 : tensor<2x4x1xf32>
      %cst_70 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %151 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %152 = stablehlo.add %150, %151 : tensor<2x4x1xf32>
      %153 = stablehlo.rsqrt %152 : tensor<2x4x1xf32>
      %154 = stablehlo.divide %153, %152 : tensor<2x4x1xf32>
      %cst_71 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %155 = stablehlo.broadcast_in_dim %cst_71, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %156 = stablehlo.multiply %155, %154 : tensor<2x4x1xf32>
      %157 = stablehlo.broadcast_in_dim %153, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %158 = stablehlo.multiply %145, %157 : tensor<2x4x8xf32>
      %159 = stablehlo.dot_general %iterArg_25, %158, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x3x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x2x4xf32>
      %160 = stablehlo.transpose %159, dims = [0, 3, 1, 4, 2] : (tensor<3x2x4x2x4xf32>) -> tensor<3x2x2x4x4xf32>
      %161 = stablehlo.slice %160 [0:1, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %162 = stablehlo.reshape %161 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %163 = stablehlo.slice %160 [1:2, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %164 = stablehlo.reshape %163 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %165 = stablehlo.slice %160 [2:3, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %166 = stablehlo.reshape %165 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %167 = stablehlo.dot_general %162, %164, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %cst_72 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %168 = stablehlo.reduce(%167 init: %cst_72) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %169 = stablehlo.reshape %168 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %170 = stablehlo.broadcast_in_dim %169, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %171 = stablehlo.compare EQ, %167, %170, FLOAT : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xi1>
      %172 = stablehlo.convert %171 : (tensor<2x2x4x4xi1>) -> tensor<2x2x4x4xf32>
      %cst_73 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %173 = stablehlo.reduce(%172 init: %cst_73) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %cst_74 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %174 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %175 = stablehlo.maximum %174, %168 : tensor<2x2x4xf32>
      %176 = stablehlo.compare EQ, %168, %175, FLOAT : (tensor<2x2x4xf32>, tensor<2x2x4xf32>) -> tensor<2x2x4xi1>
      %cst_75 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %177 = stablehlo.broadcast_in_dim %cst_75, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %cst_76 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %178 = stablehlo.broadcast_in_dim %cst_76, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %179 = stablehlo.select %176, %177, %178 : tensor<2x2x4xi1>, tensor<2x2x4xf32>
      %cst_77 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %180 = stablehlo.broadcast_in_dim %cst_77, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %181 = stablehlo.compare EQ, %180, %175, FLOAT : (tensor<2x2x4xf32>, tensor<2x2x4xf32>) -> tensor<2x2x4xi1>
      %cst_78 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %182 = stablehlo.broadcast_in_dim %cst_78, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %cst_79 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %183 = stablehlo.broadcast_in_dim %cst_79, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %184 = stablehlo.select %181, %182, %183 : tensor<2x2x4xi1>, tensor<2x2x4xf32>
      %185 = stablehlo.divide %179, %184 : tensor<2x2x4xf32>
      %186 = stablehlo.broadcast_in_dim %175, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %187 = stablehlo.broadcast_in_dim %186, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %188 = stablehlo.subtract %167, %187 : tensor<2x2x4x4xf32>
      %189 = stablehlo.exponential %188 : tensor<2x2x4x4xf32>
      %cst_80 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %190 = stablehlo.reduce(%189 init: %cst_80) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %191 = stablehlo.broadcast_in_dim %190, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %192 = stablehlo.broadcast_in_dim %191, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %193 = stablehlo.divide %189, %192 : tensor<2x2x4x4xf32>
      %194 = stablehlo.multiply %191, %191 : tensor<2x2x4x1xf32>
      %cst_81 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %195 = stablehlo.broadcast_in_dim %cst_81, dims = [] : (tensor<f32>) -> tensor<2x2x4x1xf32>
      %196 = stablehlo.divide %195, %194 : tensor<2x2x4x1xf32>
      %197 = stablehlo.dot_general %166, %193, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %198 = stablehlo.dot_general %197, %iterArg_26, contracting_dims = [2, 1] x [1, 0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
      %199 = stablehlo.add %139, %198 : tensor<2x4x8xf32>
      %200 = sdy.sharding_constraint %199 <@mesh, [{"data"}, {}, {}]> : tensor<2x4x8xf32>
      %201 = stablehlo.optimization_barrier {jaxpp.boundary} %200 : tensor<2x4x8xf32>
      %cst_82 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %202 = stablehlo.reduce(%201 init: %cst_82) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %203 = stablehlo.broadcast_in_dim %202, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_83 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %204 = stablehlo.broadcast_in_dim %cst_83, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %205 = stablehlo.divide %203, %204 : tensor<2x4x1xf32>
      %206 = stablehlo.broadcast_in_dim %205, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %207 = stablehlo.subtract %201, %206 : tensor<2x4x8xf32>
      %208 = stablehlo.multiply %207, %207 : tensor<2x4x8xf32>
      %cst_84 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %209 = stablehlo.reduce(%208 init: %cst_84) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %210 = stablehlo.broadcast_in_dim %209, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_85 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %211 = stablehlo.broadcast_in_dim %cst_85, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %212 = stablehlo.divide %210, %211 : tensor<2x4x1xf32>
      %cst_86 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %213 = stablehlo.broadcast_in_dim %cst_86, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %214 = stablehlo.add %212, %213 : tensor<2x4x1xf32>
      %215 = stablehlo.rsqrt %214 : tensor<2x4x1xf32>
      %216 = stablehlo.divide %215, %214 : tensor<2x4x1xf32>
      %cst_87 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %217 = stablehlo.broadcast_in_dim %cst_87, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %218 = stablehlo.multiply %217, %216 : tensor<2x4x1xf32>
      %219 = stablehlo.broadcast_in_dim %215, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %220 = stablehlo.multiply %207, %219 : tensor<2x4x8xf32>
      %221 = stablehlo.dot_general %220, %iterArg_27, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
      %222 = func.call @relu(%221) : (tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
      %cst_88 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %223 = stablehlo.broadcast_in_dim %cst_88, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %224 = stablehlo.compare GT, %221, %223, FLOAT : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xi1>
      %cst_89 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %225 = stablehlo.broadcast_in_dim %cst_89, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %226 = stablehlo.dot_general %222, %iterArg_28, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<16x8xf32>) -> tensor<2x4x8xf32>
      %227 = stablehlo.add %201, %226 : tensor<2x4x8xf32>
      %228 = sdy.sharding_constraint %227 <@mesh, [{"data"}, {}, {}]> : tensor<2x4x8xf32>
      %229 = stablehlo.optimization_barrier {jaxpp.boundary} %228 : tensor<2x4x8xf32>
      %230 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}} %229 : tensor<2x4x8xf32>
      %cst_90 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %231 = stablehlo.reduce(%230 init: %cst_90) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %232 = stablehlo.broadcast_in_dim %231, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_91 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %233 = stablehlo.broadcast_in_dim %cst_91, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %234 = stablehlo.divide %232, %233 : tensor<2x4x1xf32>
      %235 = stablehlo.broadcast_in_dim %234, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %236 = stablehlo.subtract %230, %235 : tensor<2x4x8xf32>
      %237 = stablehlo.multiply %236, %236 : tensor<2x4x8xf32>
      %cst_92 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %238 = stablehlo.reduce(%237 init: %cst_92) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %239 = stablehlo.broadcast_in_dim %238, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_93 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %240 = stablehlo.broadcast_in_dim %cst_93, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %241 = stablehlo.divide %239, %240 : tensor<2x4x1xf32>
      %cst_94 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %242 = stablehlo.broadcast_in_dim %cst_94, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %243 = stablehlo.add %241, %242 : tensor<2x4x1xf32>
      %244 = stablehlo.rsqrt %243 : tensor<2x4x1xf32>
      %245 = stablehlo.divide %244, %243 : tensor<2x4x1xf32>
      %cst_95 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %246 = stablehlo.broadcast_in_dim %cst_95, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %247 = stablehlo.multiply %246, %245 : tensor<2x4x1xf32>
      %248 = stablehlo.broadcast_in_dim %244, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %249 = stablehlo.multiply %236, %248 : tensor<2x4x8xf32>
      %250 = stablehlo.transpose %iterArg_20, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
      %251 = stablehlo.dot_general %249, %250, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
      %252:3 = func.call @log_softmax(%251) : (tensor<2x4x16xf32>) -> (tensor<2x4x16xf32>, tensor<2x4x16xf32>, tensor<2x4x1xf32>)
      %253 = stablehlo.slice %40 [0:2, 1:5] : (tensor<2x5xi32>) -> tensor<2x4xi32>
      %254 = stablehlo.broadcast_in_dim %253, dims = [0, 1] : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
      %255:2 = func.call @take_along_axis(%252#0, %254) : (tensor<2x4x16xf32>, tensor<2x4x1xi32>) -> (tensor<2x4x1xf32>, tensor<2x4x1x1xi32>)
      %cst_96 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %256 = stablehlo.reduce(%255#0 init: %cst_96) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<f32>
      %cst_97 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %257 = stablehlo.divide %256, %cst_97 : tensor<f32>
      %258 = stablehlo.negate %257 : tensor<f32>
      %cst_98 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %259 = stablehlo.negate %cst_98 : tensor<f32>
      %cst_99 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %260 = stablehlo.divide %259, %cst_99 : tensor<f32>
      %261 = stablehlo.broadcast_in_dim %260, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %262 = func.call @take_along_axis_0(%255#1, %261) : (tensor<2x4x1x1xi32>, tensor<2x4x1xf32>) -> tensor<2x4x16xf32>
      %263 = func.call @log_softmax_1(%252#1, %252#2, %262) : (tensor<2x4x16xf32>, tensor<2x4x1xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
      %264 = stablehlo.dot_general %263, %249, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
      %265 = stablehlo.transpose %264, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
      %266 = stablehlo.dot_general %263, %250, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<8x16xf32>) -> tensor<2x4x8xf32>
      %267 = stablehlo.transpose %265, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
      %268 = stablehlo.multiply %236, %266 : tensor<2x4x8xf32>
      %cst_100 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %269 = stablehlo.reduce(%268 init: %cst_100) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %270 = stablehlo.reshape %269 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %271 = stablehlo.broadcast_in_dim %244, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %272 = stablehlo.multiply %266, %271 : tensor<2x4x8xf32>
      %273 = stablehlo.multiply %270, %247 : tensor<2x4x1xf32>
      %cst_101 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %274 = stablehlo.broadcast_in_dim %cst_101, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %275 = stablehlo.divide %273, %274 : tensor<2x4x1xf32>
      %cst_102 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %276 = stablehlo.reduce(%275 init: %cst_102) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %277 = stablehlo.broadcast_in_dim %276, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %278 = stablehlo.multiply %236, %277 : tensor<2x4x8xf32>
      %279 = stablehlo.add %272, %278 : tensor<2x4x8xf32>
      %280 = stablehlo.multiply %277, %236 : tensor<2x4x8xf32>
      %281 = stablehlo.add %279, %280 : tensor<2x4x8xf32>
      %282 = stablehlo.negate %281 : tensor<2x4x8xf32>
      %cst_103 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %283 = stablehlo.reduce(%282 init: %cst_103) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %284 = stablehlo.reshape %283 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_104 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %285 = stablehlo.broadcast_in_dim %cst_104, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %286 = stablehlo.divide %284, %285 : tensor<2x4x1xf32>
      %cst_105 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %287 = stablehlo.reduce(%286 init: %cst_105) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %288 = stablehlo.broadcast_in_dim %287, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %289 = stablehlo.add %281, %288 : tensor<2x4x8xf32>
      %290 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}} %289 : tensor<2x4x8xf32>
      %291 = stablehlo.optimization_barrier {jaxpp.boundary} %290 : tensor<2x4x8xf32>
      %292 = sdy.sharding_constraint %291 <@mesh, [{"data"}, {}, {}]> : tensor<2x4x8xf32>
      %293 = stablehlo.dot_general %292, %222, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x4x16xf32>) -> tensor<8x16xf32>
      %294 = stablehlo.transpose %293, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
      %295 = stablehlo.dot_general %292, %iterArg_28, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x4x16xf32>
      %cst_106 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %296 = stablehlo.broadcast_in_dim %cst_106, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %297 = stablehlo.select %224, %295, %296 : tensor<2x4x16xi1>, tensor<2x4x16xf32>
      %298 = stablehlo.dot_general %297, %220, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
      %299 = stablehlo.transpose %298, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
      %300 = stablehlo.dot_general %297, %iterArg_27, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<8x16xf32>) -> tensor<2x4x8xf32>
      %301 = stablehlo.multiply %207, %300 : tensor<2x4x8xf32>
      %cst_107 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %302 = stablehlo.reduce(%301 init: %cst_107) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %303 = stablehlo.reshape %302 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %304 = stablehlo.broadcast_in_dim %215, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %305 = stablehlo.multiply %300, %304 : tensor<2x4x8xf32>
      %306 = stablehlo.multiply %303, %218 : tensor<2x4x1xf32>
      %cst_108 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %307 = stablehlo.broadcast_in_dim %cst_108, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %308 = stablehlo.divide %306, %307 : tensor<2x4x1xf32>
      %cst_109 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %309 = stablehlo.reduce(%308 init: %cst_109) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %310 = stablehlo.broadcast_in_dim %309, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %311 = stablehlo.multiply %207, %310 : tensor<2x4x8xf32>
      %312 = stablehlo.add %305, %311 : tensor<2x4x8xf32>
      %313 = stablehlo.multiply %310, %207 : tensor<2x4x8xf32>
      %314 = stablehlo.add %312, %313 : tensor<2x4x8xf32>
      %315 = stablehlo.negate %314 : tensor<2x4x8xf32>
      %cst_110 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %316 = stablehlo.reduce(%315 init: %cst_110) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %317 = stablehlo.reshape %316 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %318 = stablehlo.add %292, %314 : tensor<2x4x8xf32>
      %cst_111 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %319 = stablehlo.broadcast_in_dim %cst_111, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %320 = stablehlo.divide %317, %319 : tensor<2x4x1xf32>
      %cst_112 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %321 = stablehlo.reduce(%320 init: %cst_112) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %322 = stablehlo.broadcast_in_dim %321, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %323 = stablehlo.add %318, %322 : tensor<2x4x8xf32>
      %324 = stablehlo.optimization_barrier {jaxpp.boundary} %323 : tensor<2x4x8xf32>
      %325 = sdy.sharding_constraint %324 <@mesh, [{"data"}, {}, {}]> : tensor<2x4x8xf32>
      %326 = stablehlo.dot_general %325, %197, contracting_dims = [0, 1] x [0, 3], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x2x4x4xf32>) -> tensor<8x2x4xf32>
      %327 = stablehlo.transpose %326, dims = [1, 2, 0] : (tensor<8x2x4xf32>) -> tensor<2x4x8xf32>
      %328 = stablehlo.dot_general %325, %iterArg_26, contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x2x4xf32>
      %329 = stablehlo.transpose %328, dims = [0, 2, 3, 1] : (tensor<2x4x2x4xf32>) -> tensor<2x2x4x4xf32>
      %330 = stablehlo.dot_general %329, %166, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %331 = stablehlo.dot_general %329, %193, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %332 = stablehlo.transpose %331, dims = [0, 1, 3, 2] : (tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %333 = stablehlo.broadcast_in_dim %196, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %334 = stablehlo.multiply %330, %333 : tensor<2x2x4x4xf32>
      %335 = stablehlo.multiply %334, %189 : tensor<2x2x4x4xf32>
      %cst_113 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %336 = stablehlo.reduce(%335 init: %cst_113) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %337 = stablehlo.reshape %336 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %338 = stablehlo.negate %337 : tensor<2x2x4x1xf32>
      %339 = stablehlo.broadcast_in_dim %191, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %340 = stablehlo.divide %330, %339 : tensor<2x2x4x4xf32>
      %cst_114 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %341 = stablehlo.reduce(%338 init: %cst_114) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x1xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %342 = stablehlo.broadcast_in_dim %341, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x4xf32>
      %343 = stablehlo.add %340, %342 : tensor<2x2x4x4xf32>
      %344 = stablehlo.multiply %343, %189 : tensor<2x2x4x4xf32>
      %345 = stablehlo.dot_general %344, %162, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %346 = stablehlo.dot_general %344, %164, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %347 = stablehlo.broadcast_in_dim %332, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_115 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %348 = stablehlo.pad %347, %cst_115, low = [2, 0, 0, 0, 0], high = [0, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %349 = stablehlo.broadcast_in_dim %345, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_116 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %350 = stablehlo.pad %349, %cst_116, low = [1, 0, 0, 0, 0], high = [1, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %351 = stablehlo.add %348, %350 : tensor<3x2x2x4x4xf32>
      %352 = stablehlo.broadcast_in_dim %346, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_117 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %353 = stablehlo.pad %352, %cst_117, low = [0, 0, 0, 0, 0], high = [2, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %354 = stablehlo.add %351, %353 : tensor<3x2x2x4x4xf32>
      %355 = stablehlo.transpose %354, dims = [0, 2, 4, 1, 3] : (tensor<3x2x2x4x4xf32>) -> tensor<3x2x4x2x4xf32>
      %356 = stablehlo.dot_general %355, %iterArg_25, contracting_dims = [0, 1, 2] x [1, 2, 3], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<8x3x2x4xf32>) -> tensor<2x4x8xf32>
      %357 = stablehlo.dot_general %355, %158, contracting_dims = [3, 4] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x8xf32>
      %358 = stablehlo.transpose %357, dims = [3, 0, 1, 2] : (tensor<3x2x4x8xf32>) -> tensor<8x3x2x4xf32>
      %359 = stablehlo.multiply %145, %356 : tensor<2x4x8xf32>
      %cst_118 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %360 = stablehlo.reduce(%359 init: %cst_118) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %361 = stablehlo.reshape %360 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %362 = stablehlo.broadcast_in_dim %153, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %363 = stablehlo.multiply %356, %362 : tensor<2x4x8xf32>
      %364 = stablehlo.multiply %361, %156 : tensor<2x4x1xf32>
      %cst_119 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %365 = stablehlo.broadcast_in_dim %cst_119, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %366 = stablehlo.divide %364, %365 : tensor<2x4x1xf32>
      %cst_120 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %367 = stablehlo.reduce(%366 init: %cst_120) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %368 = stablehlo.broadcast_in_dim %367, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %369 = stablehlo.multiply %145, %368 : tensor<2x4x8xf32>
      %370 = stablehlo.add %363, %369 : tensor<2x4x8xf32>
      %371 = stablehlo.multiply %368, %145 : tensor<2x4x8xf32>
      %372 = stablehlo.add %370, %371 : tensor<2x4x8xf32>
      %373 = stablehlo.negate %372 : tensor<2x4x8xf32>
      %cst_121 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %374 = stablehlo.reduce(%373 init: %cst_121) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %375 = stablehlo.reshape %374 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %376 = stablehlo.add %325, %372 : tensor<2x4x8xf32>
      %cst_122 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %377 = stablehlo.broadcast_in_dim %cst_122, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %378 = stablehlo.divide %375, %377 : tensor<2x4x1xf32>
      %cst_123 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %379 = stablehlo.reduce(%378 init: %cst_123) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %380 = stablehlo.broadcast_in_dim %379, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %381 = stablehlo.add %376, %380 : tensor<2x4x8xf32>
      %382 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}} %381 : tensor<2x4x8xf32>
      %383 = stablehlo.optimization_barrier {jaxpp.boundary} %382 : tensor<2x4x8xf32>
      %384 = sdy.sharding_constraint %383 <@mesh, [{"data"}, {}, {}]> : tensor<2x4x8xf32>
      %385 = stablehlo.dot_general %384, %131, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x4x16xf32>) -> tensor<8x16xf32>
      %386 = stablehlo.transpose %385, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
      %387 = stablehlo.dot_general %384, %iterArg_24, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x4x16xf32>
      %cst_124 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %388 = stablehlo.broadcast_in_dim %cst_124, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %389 = stablehlo.select %133, %387, %388 : tensor<2x4x16xi1>, tensor<2x4x16xf32>
      %390 = stablehlo.dot_general %389, %129, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
      %391 = stablehlo.transpose %390, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
      %392 = stablehlo.dot_general %389, %iterArg_23, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<8x16xf32>) -> tensor<2x4x8xf32>
      %393 = stablehlo.multiply %116, %392 : tensor<2x4x8xf32>
      %cst_125 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %394 = stablehlo.reduce(%393 init: %cst_125) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %395 = stablehlo.reshape %394 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %396 = stablehlo.broadcast_in_dim %124, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %397 = stablehlo.multiply %392, %396 : tensor<2x4x8xf32>
      %398 = stablehlo.multiply %395, %127 : tensor<2x4x1xf32>
      %cst_126 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %399 = stablehlo.broadcast_in_dim %cst_126, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %400 = stablehlo.divide %398, %399 : tensor<2x4x1xf32>
      %cst_127 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %401 = stablehlo.reduce(%400 init: %cst_127) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %402 = stablehlo.broadcast_in_dim %401, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %403 = stablehlo.multiply %116, %402 : tensor<2x4x8xf32>
      %404 = stablehlo.add %397, %403 : tensor<2x4x8xf32>
      %405 = stablehlo.multiply %402, %116 : tensor<2x4x8xf32>
      %406 = stablehlo.add %404, %405 : tensor<2x4x8xf32>
      %407 = stablehlo.negate %406 : tensor<2x4x8xf32>
      %cst_128 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %408 = stablehlo.reduce(%407 init: %cst_128) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %409 = stablehlo.reshape %408 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %410 = stablehlo.add %384, %406 : tensor<2x4x8xf32>
      %cst_129 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %411 = stablehlo.broadcast_in_dim %cst_129, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %412 = stablehlo.divide %409, %411 : tensor<2x4x1xf32>
      %cst_130 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %413 = stablehlo.reduce(%412 init: %cst_130) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %414 = stablehlo.broadcast_in_dim %413, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %415 = stablehlo.add %410, %414 : tensor<2x4x8xf32>
      %416 = stablehlo.optimization_barrier {jaxpp.boundary} %415 : tensor<2x4x8xf32>
      %417 = sdy.sharding_constraint %416 <@mesh, [{"data"}, {}, {}]> : tensor<2x4x8xf32>
      %418 = stablehlo.dot_general %417, %106, contracting_dims = [0, 1] x [0, 3], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x2x4x4xf32>) -> tensor<8x2x4xf32>
      %419 = stablehlo.transpose %418, dims = [1, 2, 0] : (tensor<8x2x4xf32>) -> tensor<2x4x8xf32>
      %420 = stablehlo.dot_general %417, %iterArg_22, contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x2x4xf32>
      %421 = stablehlo.transpose %420, dims = [0, 2, 3, 1] : (tensor<2x4x2x4xf32>) -> tensor<2x2x4x4xf32>
      %422 = stablehlo.dot_general %421, %75, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %423 = stablehlo.dot_general %421, %102, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %424 = stablehlo.transpose %423, dims = [0, 1, 3, 2] : (tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %425 = stablehlo.broadcast_in_dim %105, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %426 = stablehlo.multiply %422, %425 : tensor<2x2x4x4xf32>
      %427 = stablehlo.multiply %426, %98 : tensor<2x2x4x4xf32>
      %cst_131 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %428 = stablehlo.reduce(%427 init: %cst_131) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %429 = stablehlo.reshape %428 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %430 = stablehlo.negate %429 : tensor<2x2x4x1xf32>
      %431 = stablehlo.broadcast_in_dim %100, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %432 = stablehlo.divide %422, %431 : tensor<2x2x4x4xf32>
      %cst_132 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %433 = stablehlo.reduce(%430 init: %cst_132) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x1xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %434 = stablehlo.broadcast_in_dim %433, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x4xf32>
      %435 = stablehlo.add %432, %434 : tensor<2x2x4x4xf32>
      %436 = stablehlo.multiply %435, %98 : tensor<2x2x4x4xf32>
      %437 = stablehlo.dot_general %436, %71, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %438 = stablehlo.dot_general %436, %73, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %439 = stablehlo.broadcast_in_dim %424, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_133 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %440 = stablehlo.pad %439, %cst_133, low = [2, 0, 0, 0, 0], high = [0, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %441 = stablehlo.broadcast_in_dim %437, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_134 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %442 = stablehlo.pad %441, %cst_134, low = [1, 0, 0, 0, 0], high = [1, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %443 = stablehlo.add %440, %442 : tensor<3x2x2x4x4xf32>
      %444 = stablehlo.broadcast_in_dim %438, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_135 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %445 = stablehlo.pad %444, %cst_135, low = [0, 0, 0, 0, 0], high = [2, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %446 = stablehlo.add %443, %445 : tensor<3x2x2x4x4xf32>
      %447 = stablehlo.transpose %446, dims = [0, 2, 4, 1, 3] : (tensor<3x2x2x4x4xf32>) -> tensor<3x2x4x2x4xf32>
      %448 = stablehlo.dot_general %447, %iterArg_21, contracting_dims = [0, 1, 2] x [1, 2, 3], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<8x3x2x4xf32>) -> tensor<2x4x8xf32>
      %449 = stablehlo.dot_general %447, %67, contracting_dims = [3, 4] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x8xf32>
      %450 = stablehlo.transpose %449, dims = [3, 0, 1, 2] : (tensor<3x2x4x8xf32>) -> tensor<8x3x2x4xf32>
      %451 = stablehlo.multiply %54, %448 : tensor<2x4x8xf32>
      %cst_136 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %452 = stablehlo.reduce(%451 init: %cst_136) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %453 = stablehlo.reshape %452 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %454 = stablehlo.broadcast_in_dim %62, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %455 = stablehlo.multiply %448, %454 : tensor<2x4x8xf32>
      %456 = stablehlo.multiply %453, %65 : tensor<2x4x1xf32>
      %cst_137 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %457 = stablehlo.broadcast_in_dim %cst_137, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %458 = stablehlo.divide %456, %457 : tensor<2x4x1xf32>
      %cst_138 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %459 = stablehlo.reduce(%458 init: %cst_138) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %460 = stablehlo.broadcast_in_dim %459, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %461 = stablehlo.multiply %54, %460 : tensor<2x4x8xf32>
      %462 = stablehlo.add %455, %461 : tensor<2x4x8xf32>
      %463 = stablehlo.multiply %460, %54 : tensor<2x4x8xf32>
      %464 = stablehlo.add %462, %463 : tensor<2x4x8xf32>
      %465 = stablehlo.negate %464 : tensor<2x4x8xf32>
      %cst_139 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %466 = stablehlo.reduce(%465 init: %cst_139) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %467 = stablehlo.reshape %466 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %468 = stablehlo.add %417, %464 : tensor<2x4x8xf32>
      %cst_140 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %469 = stablehlo.broadcast_in_dim %cst_140, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %470 = stablehlo.divide %467, %469 : tensor<2x4x1xf32>
      %cst_141 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %471 = stablehlo.reduce(%470 init: %cst_141) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %472 = stablehlo.broadcast_in_dim %471, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %473 = stablehlo.add %468, %472 : tensor<2x4x8xf32>
      %cst_142 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %474 = stablehlo.broadcast_in_dim %cst_142, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
      %475 = "stablehlo.scatter"(%474, %47, %473) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
      ^bb0(%arg10: tensor<f32>, %arg11: tensor<f32>):
        %488 = stablehlo.add %arg10, %arg11 : tensor<f32>
        stablehlo.return %488 : tensor<f32>
      }) : (tensor<16x8xf32>, tensor<2x4x1xi32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
      %476 = stablehlo.add %267, %475 : tensor<16x8xf32>
      %c_143 = stablehlo.constant dense<1> : tensor<i32>
      %477 = stablehlo.add %iterArg_29, %c_143 : tensor<i32>
      %478 = func.call @dynamic_update_index_in_dim(%iterArg_30, %258, %iterArg_29) : (tensor<4xf32>, tensor<f32>, tensor<i32>) -> tensor<4xf32>
      %479 = stablehlo.add %iterArg_31, %386 : tensor<16x8xf32>
      %480 = stablehlo.add %iterArg_32, %419 : tensor<2x4x8xf32>
      %481 = stablehlo.add %iterArg_33, %450 : tensor<8x3x2x4xf32>
      %482 = stablehlo.add %iterArg_34, %391 : tensor<8x16xf32>
      %483 = stablehlo.add %iterArg_35, %294 : tensor<16x8xf32>
      %484 = stablehlo.add %iterArg_36, %327 : tensor<2x4x8xf32>
      %485 = stablehlo.add %iterArg_37, %358 : tensor<8x3x2x4xf32>
      %486 = stablehlo.add %iterArg_38, %299 : tensor<8x16xf32>
      %487 = stablehlo.add %iterArg_39, %476 : tensor<16x8xf32>
      stablehlo.return %iterArg, %iterArg_20, %iterArg_21, %iterArg_22, %iterArg_23, %iterArg_24, %iterArg_25, %iterArg_26, %iterArg_27, %iterArg_28, %477, %478, %479, %480, %481, %482, %483, %484, %485, %486, %487 : tensor<4x2x5xi32>, tensor<16x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<i32>, tensor<4xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>
    }
    %cst_9 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %12 = stablehlo.multiply %11, %10#12 : tensor<16x8xf32>
    %13 = stablehlo.subtract %arg0, %12 : tensor<16x8xf32>
    %cst_10 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %15 = stablehlo.multiply %14, %10#13 : tensor<2x4x8xf32>
    %16 = stablehlo.subtract %arg1, %15 : tensor<2x4x8xf32>
    %cst_11 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %18 = stablehlo.multiply %17, %10#14 : tensor<8x3x2x4xf32>
    %19 = stablehlo.subtract %arg2, %18 : tensor<8x3x2x4xf32>
    %cst_12 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %21 = stablehlo.multiply %20, %10#15 : tensor<8x16xf32>
    %22 = stablehlo.subtract %arg3, %21 : tensor<8x16xf32>
    %cst_13 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %23 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %24 = stablehlo.multiply %23, %10#16 : tensor<16x8xf32>
    %25 = stablehlo.subtract %arg4, %24 : tensor<16x8xf32>
    %cst_14 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %26 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %27 = stablehlo.multiply %26, %10#17 : tensor<2x4x8xf32>
    %28 = stablehlo.subtract %arg5, %27 : tensor<2x4x8xf32>
    %cst_15 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %30 = stablehlo.multiply %29, %10#18 : tensor<8x3x2x4xf32>
    %31 = stablehlo.subtract %arg6, %30 : tensor<8x3x2x4xf32>
    %cst_16 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %32 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %33 = stablehlo.multiply %32, %10#19 : tensor<8x16xf32>
    %34 = stablehlo.subtract %arg7, %33 : tensor<8x16xf32>
    %cst_17 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %35 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %36 = stablehlo.multiply %35, %10#20 : tensor<16x8xf32>
    %37 = stablehlo.subtract %arg8, %36 : tensor<16x8xf32>
    %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %38 = stablehlo.reduce(%10#11 init: %cst_18) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %cst_19 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %39 = stablehlo.divide %38, %cst_19 : tensor<f32>
    return %13, %16, %19, %22, %25, %28, %31, %34, %37, %39 : tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<f32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<4x2x5xi32>, %arg1: tensor<i32>) -> tensor<2x5xi32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 2, 5] : (tensor<4x2x5xi32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5xi32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x5xi32>) -> tensor<2x5xi32>
    return %1 : tensor<2x5xi32>
  }
  func.func private @relu(%arg0: tensor<2x4x16xf32>) -> tensor<2x4x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<2x4x16xf32>
    return %1 : tensor<2x4x16xf32>
  }
  func.func private @log_softmax(%arg0: tensor<2x4x16xf32>) -> (tensor<2x4x16xf32>, tensor<2x4x16xf32>, tensor<2x4x1xf32>) {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.maximum across dimensions = [2] : (tensor<2x4x16xf32>, tensor<f32>) -> tensor<2x4xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x4xf32>
    %2 = stablehlo.maximum %1, %0 : tensor<2x4xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x16xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<2x4x16xf32>
    %6 = stablehlo.exponential %5 : tensor<2x4x16xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<2x4x16xf32>, tensor<f32>) -> tensor<2x4xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
    %9 = stablehlo.log %8 : tensor<2x4x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x16xf32>
    %11 = stablehlo.subtract %5, %10 : tensor<2x4x16xf32>
    return %11, %6, %8 : tensor<2x4x16xf32>, tensor<2x4x16xf32>, tensor<2x4x1xf32>
  }
  func.func private @take_along_axis(%arg0: tensor<2x4x16xf32>, %arg1: tensor<2x4x1xi32>) -> (tensor<2x4x1xf32>, tensor<2x4x1x1xi32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<2x4x1xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<2x4x1xi32>, tensor<2x4x1xi32>) -> tensor<2x4x1xi1>
    %c_0 = stablehlo.constant dense<16> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<2x4x1xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<2x4x1xi32>
    %4 = stablehlo.select %1, %3, %arg1 : tensor<2x4x1xi1>, tensor<2x4x1xi32>
    %5 = stablehlo.reshape %4 : (tensor<2x4x1xi32>) -> tensor<2x4x1x1xi32>
    %c_1 = stablehlo.constant dense<15> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<2x4x1x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<2x4x1x1xi32>, tensor<2x4x1x1xi32>) -> tensor<2x4x1x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [3] : (tensor<1xi32>) -> tensor<1x1x1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2, 3] : (tensor<1x1x1x1xi32>) -> tensor<2x4x1x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<2x4x1x1xi32>, tensor<2x4x1x1xi32>) -> tensor<2x4x1x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<2x4x1x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [3] : (tensor<2x4x1x1xi1>, tensor<i1>) -> tensor<2x4x1xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 3>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1, 1>}> : (tensor<2x4x16xf32>, tensor<2x4x1x1xi32>) -> tensor<2x4x1xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
    %15 = stablehlo.select %12, %13, %14 : tensor<2x4x1xi1>, tensor<2x4x1xf32>
    return %15, %5 : tensor<2x4x1xf32>, tensor<2x4x1x1xi32>
  }
  func.func private @take_along_axis_0(%arg0: tensor<2x4x1x1xi32>, %arg1: tensor<2x4x1xf32>) -> tensor<2x4x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
    %1 = "stablehlo.scatter"(%0, %arg0, %arg1) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [2], index_vector_dim = 3>, unique_indices = false}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<2x4x16xf32>, tensor<2x4x1x1xi32>, tensor<2x4x1xf32>) -> tensor<2x4x16xf32>
    return %1 : tensor<2x4x16xf32>
  }
  func.func private @log_softmax_1(%arg0: tensor<2x4x16xf32>, %arg1: tensor<2x4x1xf32>, %arg2: tensor<2x4x16xf32>) -> tensor<2x4x16xf32> {
    %0 = stablehlo.negate %arg2 : tensor<2x4x16xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<2x4x16xf32>, tensor<f32>) -> tensor<2x4xf32>
    %2 = stablehlo.reshape %1 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
    %3 = stablehlo.divide %2, %arg1 : tensor<2x4x1xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x16xf32>
    %6 = stablehlo.multiply %5, %arg0 : tensor<2x4x16xf32>
    %7 = stablehlo.add %arg2, %6 : tensor<2x4x16xf32>
    return %7 : tensor<2x4x16xf32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<4xf32>, %arg1: tensor<f32>, %arg2: tensor<i32>) -> tensor<4xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2 : (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
