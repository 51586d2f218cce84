// Written by gpt_experts.py.
module @jit_train_step attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "expert"=2]>
  func.func public @main(%arg0: tensor<2x16x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"expert"}, {}, {}]>}, %arg1: tensor<2x4x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}, %arg2: tensor<8x3x2x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {}]>}, %arg3: tensor<2x8x16xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"expert"}, {}, {}]>}, %arg4: tensor<2x16x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"expert"}, {}, {}]>}, %arg5: tensor<2x4x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}, %arg6: tensor<8x3x2x4xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}, {}]>}, %arg7: tensor<2x8x16xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{"expert"}, {}, {}]>}, %arg8: tensor<16x8xf32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg9: tensor<4x2x5xi32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}) -> (tensor<2x16x8xf32> {jax.result_info = "result[0]['blocks'][0]['down']", jaxpp.feeds = 0 : i64}, tensor<2x4x8xf32> {jax.result_info = "result[0]['blocks'][0]['out']", jaxpp.feeds = 1 : i64}, tensor<8x3x2x4xf32> {jax.result_info = "result[0]['blocks'][0]['qkv']", jaxpp.feeds = 2 : i64}, tensor<2x8x16xf32> {jax.result_info = "result[0]['blocks'][0]['up']", jaxpp.feeds = 3 : i64}, tensor<2x16x8xf32> {jax.result_info = "result[0]['blocks'][1]['down']", jaxpp.feeds = 4 : i64}, tensor<2x4x8xf32> {jax.result_info = "result[0]['blocks'][1]['out']", jaxpp.feeds = 5 : i64}, tensor<8x3x2x4xf32> {jax.result_info = "result[0]['blocks'][1]['qkv']", jaxpp.feeds = 6 : i64}, tensor<2x8x16xf32> {jax.result_info = "result[0]['blocks'][1]['up']", jaxpp.feeds = 7 : i64}, tensor<16x8xf32> {jax.result_info = "result[0]['embed']", jaxpp.feeds = 8 : i64}, tensor<f32> {jax.result_info = "result[1]"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x16x8xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<2x8x16xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<2x16x8xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<2x8x16xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %10:21 = stablehlo.while(%iterArg = %arg9, %iterArg_20 = %arg8, %iterArg_21 = %arg2, %iterArg_22 = %arg1, %iterArg_23 = %arg3, %iterArg_24 = %arg0, %iterArg_25 = %arg6, %iterArg_26 = %arg5, %iterArg_27 = %arg7, %iterArg_28 = %arg4, %iterArg_29 = %c, %iterArg_30 = %0, %iterArg_31 = %1, %iterArg_32 = %2, %iterArg_33 = %3, %iterArg_34 = %4, %iterArg_35 = %5, %iterArg_36 = %6, %iterArg_37 = %7, %iterArg_38 = %8, %iterArg_39 = %9) : tensor<4x2x5xi32>, tensor<16x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<i32>, tensor<4xf32>, tensor<2x16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<2x8x16xf32>, tensor<16x8xf32> attributes {jaxpp.microbatch_loop = {length = 4 : i64, schedule = "schedule: 1f1b\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 .   0B0 0F2 0B1 0F3 0B2 .   0B3\0Amesh 1: .   1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"}}
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
      %cst_58 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %109 = stablehlo.reduce(%108 init: %cst_58) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %110 = stablehlo.broadcast_in_dim %109, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_59 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %111 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %112 = stablehlo.divide %110, %111 : tensor<2x4x1xf32>
      %113 = stablehlo.broadcast_in_dim %112, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %114 = stablehlo.subtract %108, %113 : tensor<2x4x8xf32>
      %115 = stablehlo.multiply %114, %114 : tensor<2x4x8xf32>
      %cst_60 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %116 = stablehlo.reduce(%115 init: %cst_60) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %117 = stablehlo.broadcast_in_dim %116, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_61 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %118 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %119 = stablehlo.divide %117, %118 : tensor<2x4x1xf32>
      %cst_62 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %120 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %121 = stablehlo.add %119, %120 : tensor<2x4x1xf32>
      %122 = stablehlo.rsqrt %121 : tensor<2x4x1xf32>
      %123 = stablehlo.divide %122, %121 : tensor<2x4x1xf32>
      %cst_63 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %124 = stablehlo.broadcast_in_dim %cst_63, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %125 = stablehlo.multiply %124, %123 : tensor<2x4x1xf32>
      %126 = stablehlo.broadcast_in_dim %122, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %127 = stablehlo.multiply %114, %126 : tensor<2x4x8xf32>
      %128:7 = sdy.manual_computation(%iterArg_23, %iterArg_24, %127) in_shardings=[<@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{}, {"expert"}, {}]>] out_shardings=[<@mesh, [{"expert"}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{}, {"expert"}, {}]>] manual_axes={"mpmd", "expert"} (%arg10: tensor<1x8x16xf32>, %arg11: tensor<1x16x8xf32>, %arg12: tensor<2x2x8xf32>) {
        %448 = "stablehlo.all_to_all"(%arg12) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<2x2x8xf32>) -> tensor<2x2x8xf32>
        %449 = stablehlo.optimization_barrier {jaxpp.boundary} %448 : tensor<2x2x8xf32>
        %450 = stablehlo.reshape %arg10 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
        %451 = stablehlo.dot_general %449, %450, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8xf32>, tensor<8x16xf32>) -> tensor<2x2x16xf32>
        %452 = func.call @relu(%451) : (tensor<2x2x16xf32>) -> tensor<2x2x16xf32>
        %cst_138 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
        %453 = stablehlo.broadcast_in_dim %cst_138, dims = [] : (tensor<f32>) -> tensor<2x2x16xf32>
        %454 = stablehlo.compare GT, %451, %453, FLOAT : (tensor<2x2x16xf32>, tensor<2x2x16xf32>) -> tensor<2x2x16xi1>
        %cst_139 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
        %455 = stablehlo.broadcast_in_dim %cst_139, dims = [] : (tensor<f32>) -> tensor<2x2x16xf32>
        %456 = stablehlo.reshape %arg11 : (tensor<1x16x8xf32>) -> tensor<16x8xf32>
        %457 = stablehlo.dot_general %452, %456, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x16xf32>, tensor<16x8xf32>) -> tensor<2x2x8xf32>
        %458 = "stablehlo.all_to_all"(%457) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<2x2x8xf32>) -> tensor<2x2x8xf32>
        %459 = stablehlo.optimization_barrier {jaxpp.boundary} %458 : tensor<2x2x8xf32>
        sdy.return %450, %449, %454, %455, %456, %452, %459 : tensor<8x16xf32>, tensor<2x2x8xf32>, tensor<2x2x16xi1>, tensor<2x2x16xf32>, tensor<16x8xf32>, tensor<2x2x16xf32>, tensor<2x2x8xf32>
      } : (tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<2x4x8xf32>) -> (tensor<16x16xf32>, tensor<4x2x8xf32>, tensor<4x2x16xi1>, tensor<4x2x16xf32>, tensor<32x8xf32>, tensor<4x2x16xf32>, tensor<2x4x8xf32>)
      %129 = stablehlo.add %108, %128#6 : tensor<2x4x8xf32>
      %130 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}} %129 : tensor<2x4x8xf32>
      %cst_64 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %131 = stablehlo.reduce(%130 init: %cst_64) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %132 = stablehlo.broadcast_in_dim %131, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_65 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %133 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %134 = stablehlo.divide %132, %133 : tensor<2x4x1xf32>
      %135 = stablehlo.broadcast_in_dim %134, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %136 = stablehlo.subtract %130, %135 : tensor<2x4x8xf32>
      %137 = stablehlo.multiply %136, %136 : tensor<2x4x8xf32>
      %cst_66 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %138 = stablehlo.reduce(%137 init: %cst_66) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %139 = stablehlo.broadcast_in_dim %138, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_67 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %140 = stablehlo.broadcast_in_dim %cst_67, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %141 = stablehlo.divide %139, %140 : tensor<2x4x1xf32>
      %cst_68 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %142 = stablehlo.broadcast_in_dim %cst_68, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %143 = stablehlo.add %141, %142 : tensor<2x4x1xf32>
      %144 = stablehlo.rsqrt %143 : tensor<2x4x1xf32>
      %145 = stablehlo.divide %144, %143 : tensor<2x4x1xf32>
      %cst_69 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %146 = stablehlo.broadcast_in_dim %cst_69, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %147 = stablehlo.multiply %146, %145 : tensor<2x4x1xf32>
      %148 = stablehlo.broadcast_in_dim %144, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %149 = stablehlo.multiply %136, %148 : tensor<2x4x8xf32>
      %150 = stablehlo.dot_general %iterArg_25, %149, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x3x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x2x4xf32>
      %151 = stablehlo.transpose %150, dims = [0, 3, 1, 4, 2] : (tensor<3x2x4x2x4xf32>) -> tensor<3x2x2x4x4xf32>
      %152 = stablehlo.slice %151 [0:1, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %153 = stablehlo.reshape %152 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %154 = stablehlo.slice %151 [1:2, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %155 = stablehlo.reshape %154 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %156 = stablehlo.slice %151 [2:3, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %157 = stablehlo.reshape %156 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %158 = stablehlo.dot_general %153, %155, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %cst_70 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %159 = stablehlo.reduce(%158 init: %cst_70) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %160 = stablehlo.reshape %159 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %161 = stablehlo.broadcast_in_dim %160, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %162 = stablehlo.compare EQ, %158, %161, FLOAT : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xi1>
      %163 = stablehlo.convert %162 : (tensor<2x2x4x4xi1>) -> tensor<2x2x4x4xf32>
      %cst_71 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %164 = stablehlo.reduce(%163 init: %cst_71) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %cst_72 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %165 = stablehlo.broadcast_in_dim %cst_72, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %166 = stablehlo.maximum %165, %159 : tensor<2x2x4xf32>
      %167 = stablehlo.compare EQ, %159, %166, FLOAT : (tensor<2x2x4xf32>, tensor<2x2x4xf32>) -> tensor<2x2x4xi1>
      %cst_73 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %168 = stablehlo.broadcast_in_dim %cst_73, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %cst_74 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %169 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %170 = stablehlo.select %167, %168, %169 : tensor<2x2x4xi1>, tensor<2x2x4xf32>
      %cst_75 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %171 = stablehlo.broadcast_in_dim %cst_75, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %172 = stablehlo.compare EQ, %171, %166, FLOAT : (tensor<2x2x4xf32>, tensor<2x2x4xf32>) -> tensor<2x2x4xi1>
      %cst_76 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %173 = stablehlo.broadcast_in_dim %cst_76, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %cst_77 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %174 = stablehlo.broadcast_in_dim %cst_77, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %175 = stablehlo.select %172, %173, %174 : tensor<2x2x4xi1>, tensor<2x2x4xf32>
      %176 = stablehlo.divide %170, %175 : tensor<2x2x4xf32>
      %177 = stablehlo.broadcast_in_dim %166, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %178 = stablehlo.broadcast_in_dim %177, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %179 = stablehlo.subtract %158, %178 : tensor<2x2x4x4xf32>
      %180 = stablehlo.exponential %179 : tensor<2x2x4x4xf32>
      %cst_78 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %181 = stablehlo.reduce(%180 init: %cst_78) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %182 = stablehlo.broadcast_in_dim %181, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %183 = stablehlo.broadcast_in_dim %182, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %184 = stablehlo.divide %180, %183 : tensor<2x2x4x4xf32>
      %185 = stablehlo.multiply %182, %182 : tensor<2x2x4x1xf32>
      %cst_79 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %186 = stablehlo.broadcast_in_dim %cst_79, dims = [] : (tensor<f32>) -> tensor<2x2x4x1xf32>
      %187 = stablehlo.divide %186, %185 : tensor<2x2x4x1xf32>
      %188 = stablehlo.dot_general %157, %184, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %189 = stablehlo.dot_general %188, %iterArg_26, contracting_dims = [2, 1] x [1, 0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
      %190 = stablehlo.add %130, %189 : tensor<2x4x8xf32>
      %cst_80 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %191 = stablehlo.reduce(%190 init: %cst_80) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %192 = stablehlo.broadcast_in_dim %191, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_81 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %193 = stablehlo.broadcast_in_dim %cst_81, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %194 = stablehlo.divide %192, %193 : tensor<2x4x1xf32>
      %195 = stablehlo.broadcast_in_dim %194, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %196 = stablehlo.subtract %190, %195 : tensor<2x4x8xf32>
      %197 = stablehlo.multiply %196, %196 : tensor<2x4x8xf32>
      %cst_82 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %198 = stablehlo.reduce(%197 init: %cst_82) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %199 = stablehlo.broadcast_in_dim %198, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_83 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %200 = stablehlo.broadcast_in_dim %cst_83, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %201 = stablehlo.divide %199, %200 : tensor<2x4x1xf32>
      %cst_84 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %202 = stablehlo.broadcast_in_dim %cst_84, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %203 = stablehlo.add %201, %202 : tensor<2x4x1xf32>
      %204 = stablehlo.rsqrt %203 : tensor<2x4x1xf32>
      %205 = stablehlo.divide %204, %203 : tensor<2x4x1xf32>
      %cst_85 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %206 = stablehlo.broadcast_in_dim %cst_85, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %207 = stablehlo.multiply %206, %205 : tensor<2x4x1xf32>
      %208 = stablehlo.broadcast_in_dim %204, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %209 = stablehlo.multiply %196, %208 : tensor<2x4x8xf32>
      %210:7 = sdy.manual_computation(%iterArg_27, %iterArg_28, %209) in_shardings=[<@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{}, {"expert"}, {}]>] out_shardings=[<@mesh, [{"expert"}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{}, {"expert"}, {}]>] manual_axes={"mpmd", "expert"} (%arg10: tensor<1x8x16xf32>, %arg11: tensor<1x16x8xf32>, %arg12: tensor<2x2x8xf32>) {
        %448 = "stablehlo.all_to_all"(%arg12) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<2x2x8xf32>) -> tensor<2x2x8xf32>
        %449 = stablehlo.optimization_barrier {jaxpp.boundary} %448 : tensor<2x2x8xf32>
        %450 = stablehlo.reshape %arg10 : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
        %451 = stablehlo.dot_general %449, %450, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8xf32>, tensor<8x16xf32>) -> tensor<2x2x16xf32>
        %452 = func.call @relu(%451) : (tensor<2x2x16xf32>) -> tensor<2x2x16xf32>
        %cst_138 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
        %453 = stablehlo.broadcast_in_dim %cst_138, dims = [] : (tensor<f32>) -> tensor<2x2x16xf32>
        %454 = stablehlo.compare GT, %451, %453, FLOAT : (tensor<2x2x16xf32>, tensor<2x2x16xf32>) -> tensor<2x2x16xi1>
        %cst_139 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
        %455 = stablehlo.broadcast_in_dim %cst_139, dims = [] : (tensor<f32>) -> tensor<2x2x16xf32>
        %456 = stablehlo.reshape %arg11 : (tensor<1x16x8xf32>) -> tensor<16x8xf32>
        %457 = stablehlo.dot_general %452, %456, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x16xf32>, tensor<16x8xf32>) -> tensor<2x2x8xf32>
        %458 = "stablehlo.all_to_all"(%457) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<2x2x8xf32>) -> tensor<2x2x8xf32>
        %459 = stablehlo.optimization_barrier {jaxpp.boundary} %458 : tensor<2x2x8xf32>
        sdy.return %450, %449, %454, %455, %456, %452, %459 : tensor<8x16xf32>, tensor<2x2x8xf32>, tensor<2x2x16xi1>, tensor<2x2x16xf32>, tensor<16x8xf32>, tensor<2x2x16xf32>, tensor<2x2x8xf32>
      } : (tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<2x4x8xf32>) -> (tensor<16x16xf32>, tensor<4x2x8xf32>, tensor<4x2x16xi1>, tensor<4x2x16xf32>, tensor<32x8xf32>, tensor<4x2x16xf32>, tensor<2x4x8xf32>)
      %211 = stablehlo.add %190, %210#6 : tensor<2x4x8xf32>
      %212 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}} %211 : tensor<2x4x8xf32>
      %cst_86 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %213 = stablehlo.reduce(%212 init: %cst_86) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %214 = stablehlo.broadcast_in_dim %213, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_87 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %215 = stablehlo.broadcast_in_dim %cst_87, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %216 = stablehlo.divide %214, %215 : tensor<2x4x1xf32>
      %217 = stablehlo.broadcast_in_dim %216, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %218 = stablehlo.subtract %212, %217 : tensor<2x4x8xf32>
      %219 = stablehlo.multiply %218, %218 : tensor<2x4x8xf32>
      %cst_88 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %220 = stablehlo.reduce(%219 init: %cst_88) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %221 = stablehlo.broadcast_in_dim %220, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_89 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %222 = stablehlo.broadcast_in_dim %cst_89, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %223 = stablehlo.divide %221, %222 : tensor<2x4x1xf32>
      %cst_90 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %224 = stablehlo.broadcast_in_dim %cst_90, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %225 = stablehlo.add %223, %224 : tensor<2x4x1xf32>
      %226 = stablehlo.rsqrt %225 : tensor<2x4x1xf32>
      %227 = stablehlo.divide %226, %225 : tensor<2x4x1xf32>
      %cst_91 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %228 = stablehlo.broadcast_in_dim %cst_91, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %229 = stablehlo.multiply %228, %227 : tensor<2x4x1xf32>
      %230 = stablehlo.broadcast_in_dim %226, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %231 = stablehlo.multiply %218, %230 : tensor<2x4x8xf32>
      %232 = stablehlo.transpose %iterArg_20, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
      %233 = stablehlo.dot_general %231, %232, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
      %234:3 = func.call @log_softmax(%233) : (tensor<2x4x16xf32>) -> (tensor<2x4x16xf32>, tensor<2x4x16xf32>, tensor<2x4x1xf32>)
      %235 = stablehlo.slice %40 [0:2, 1:5] : (tensor<2x5xi32>) -> tensor<2x4xi32>
      %236 = stablehlo.broadcast_in_dim %235, dims = [0, 1] : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
      %237:2 = func.call @take_along_axis(%234#0, %236) : (tensor<2x4x16xf32>, tensor<2x4x1xi32>) -> (tensor<2x4x1xf32>, tensor<2x4x1x1xi32>)
      %cst_92 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %238 = stablehlo.reduce(%237#0 init: %cst_92) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<f32>
      %cst_93 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %239 = stablehlo.divide %238, %cst_93 : tensor<f32>
      %240 = stablehlo.negate %239 : tensor<f32>
      %cst_94 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %241 = stablehlo.negate %cst_94 : tensor<f32>
      %cst_95 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %242 = stablehlo.divide %241, %cst_95 : tensor<f32>
      %243 = stablehlo.broadcast_in_dim %242, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %244 = func.call @take_along_axis_0(%237#1, %243) : (tensor<2x4x1x1xi32>, tensor<2x4x1xf32>) -> tensor<2x4x16xf32>
      %245 = func.call @log_softmax_1(%234#1, %234#2, %244) : (tensor<2x4x16xf32>, tensor<2x4x1xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
      %246 = stablehlo.dot_general %245, %231, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
      %247 = stablehlo.transpose %246, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
      %248 = stablehlo.dot_general %245, %232, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<8x16xf32>) -> tensor<2x4x8xf32>
      %249 = stablehlo.transpose %247, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
      %250 = stablehlo.multiply %218, %248 : tensor<2x4x8xf32>
      %cst_96 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %251 = stablehlo.reduce(%250 init: %cst_96) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %252 = stablehlo.reshape %251 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %253 = stablehlo.broadcast_in_dim %226, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %254 = stablehlo.multiply %248, %253 : tensor<2x4x8xf32>
      %255 = stablehlo.multiply %252, %229 : tensor<2x4x1xf32>
      %cst_97 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %256 = stablehlo.broadcast_in_dim %cst_97, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %257 = stablehlo.divide %255, %256 : tensor<2x4x1xf32>
      %cst_98 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %258 = stablehlo.reduce(%257 init: %cst_98) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %259 = stablehlo.broadcast_in_dim %258, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %260 = stablehlo.multiply %218, %259 : tensor<2x4x8xf32>
      %261 = stablehlo.add %254, %260 : tensor<2x4x8xf32>
      %262 = stablehlo.multiply %259, %218 : tensor<2x4x8xf32>
      %263 = stablehlo.add %261, %262 : tensor<2x4x8xf32>
      %264 = stablehlo.negate %263 : tensor<2x4x8xf32>
      %cst_99 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %265 = stablehlo.reduce(%264 init: %cst_99) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %266 = stablehlo.reshape %265 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_100 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %267 = stablehlo.broadcast_in_dim %cst_100, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %268 = stablehlo.divide %266, %267 : tensor<2x4x1xf32>
      %cst_101 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %269 = stablehlo.reduce(%268 init: %cst_101) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %270 = stablehlo.broadcast_in_dim %269, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %271 = stablehlo.add %263, %270 : tensor<2x4x8xf32>
      %272 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}} %271 : tensor<2x4x8xf32>
      %273:3 = sdy.manual_computation(%272, %210#0, %210#1, %210#2, %210#3, %210#4, %210#5) in_shardings=[<@mesh, [{}, {"expert"}, {}]>, <@mesh, [{"expert"}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}]>, <@mesh, [{"expert"}, {}, {}]>] out_shardings=[<@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{}, {"expert"}, {}]>] manual_axes={"mpmd", "expert"} (%arg10: tensor<2x2x8xf32>, %arg11: tensor<8x16xf32>, %arg12: tensor<2x2x8xf32>, %arg13: tensor<2x2x16xi1>, %arg14: tensor<2x2x16xf32>, %arg15: tensor<16x8xf32>, %arg16: tensor<2x2x16xf32>) {
        %448 = stablehlo.optimization_barrier {jaxpp.boundary} %arg10 : tensor<2x2x8xf32>
        %449 = "stablehlo.all_to_all"(%448) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<2x2x8xf32>) -> tensor<2x2x8xf32>
        %450 = stablehlo.dot_general %449, %arg16, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8xf32>, tensor<2x2x16xf32>) -> tensor<8x16xf32>
        %451 = stablehlo.transpose %450, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
        %452 = stablehlo.dot_general %449, %arg15, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8xf32>, tensor<16x8xf32>) -> tensor<2x2x16xf32>
        %453 = stablehlo.broadcast_in_dim %451, dims = [1, 2] : (tensor<16x8xf32>) -> tensor<1x16x8xf32>
        %cst_138 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
        %454 = stablehlo.broadcast_in_dim %cst_138, dims = [] : (tensor<f32>) -> tensor<2x2x16xf32>
        %455 = stablehlo.select %arg13, %452, %454 : tensor<2x2x16xi1>, tensor<2x2x16xf32>
        %456 = stablehlo.dot_general %455, %arg12, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x2x16xf32>, tensor<2x2x8xf32>) -> tensor<16x8xf32>
        %457 = stablehlo.transpose %456, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
        %458 = stablehlo.dot_general %455, %arg11, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x2x16xf32>, tensor<8x16xf32>) -> tensor<2x2x8xf32>
        %459 = stablehlo.broadcast_in_dim %457, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
        %460 = stablehlo.optimization_barrier {jaxpp.boundary} %458 : tensor<2x2x8xf32>
        %461 = "stablehlo.all_to_all"(%460) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<2x2x8xf32>) -> tensor<2x2x8xf32>
        sdy.return %459, %453, %461 : tensor<1x8x16xf32>, tensor<1x16x8xf32>, tensor<2x2x8xf32>
      } : (tensor<2x4x8xf32>, tensor<16x16xf32>, tensor<4x2x8xf32>, tensor<4x2x16xi1>, tensor<4x2x16xf32>, tensor<32x8xf32>, tensor<4x2x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<2x4x8xf32>)
      %274 = stablehlo.multiply %196, %273#2 : tensor<2x4x8xf32>
      %cst_102 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %275 = stablehlo.reduce(%274 init: %cst_102) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %276 = stablehlo.reshape %275 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %277 = stablehlo.broadcast_in_dim %204, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %278 = stablehlo.multiply %273#2, %277 : tensor<2x4x8xf32>
      %279 = stablehlo.multiply %276, %207 : tensor<2x4x1xf32>
      %cst_103 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %280 = stablehlo.broadcast_in_dim %cst_103, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %281 = stablehlo.divide %279, %280 : tensor<2x4x1xf32>
      %cst_104 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %282 = stablehlo.reduce(%281 init: %cst_104) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %283 = stablehlo.broadcast_in_dim %282, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %284 = stablehlo.multiply %196, %283 : tensor<2x4x8xf32>
      %285 = stablehlo.add %278, %284 : tensor<2x4x8xf32>
      %286 = stablehlo.multiply %283, %196 : tensor<2x4x8xf32>
      %287 = stablehlo.add %285, %286 : tensor<2x4x8xf32>
      %288 = stablehlo.negate %287 : tensor<2x4x8xf32>
      %cst_105 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %289 = stablehlo.reduce(%288 init: %cst_105) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %290 = stablehlo.reshape %289 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %291 = stablehlo.add %272, %287 : tensor<2x4x8xf32>
      %cst_106 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %292 = stablehlo.broadcast_in_dim %cst_106, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %293 = stablehlo.divide %290, %292 : tensor<2x4x1xf32>
      %cst_107 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %294 = stablehlo.reduce(%293 init: %cst_107) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %295 = stablehlo.broadcast_in_dim %294, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %296 = stablehlo.add %291, %295 : tensor<2x4x8xf32>
      %297 = stablehlo.dot_general %296, %188, contracting_dims = [0, 1] x [0, 3], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x2x4x4xf32>) -> tensor<8x2x4xf32>
      %298 = stablehlo.transpose %297, dims = [1, 2, 0] : (tensor<8x2x4xf32>) -> tensor<2x4x8xf32>
      %299 = stablehlo.dot_general %296, %iterArg_26, contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x2x4xf32>
      %300 = stablehlo.transpose %299, dims = [0, 2, 3, 1] : (tensor<2x4x2x4xf32>) -> tensor<2x2x4x4xf32>
      %301 = stablehlo.dot_general %300, %157, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %302 = stablehlo.dot_general %300, %184, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %303 = stablehlo.transpose %302, dims = [0, 1, 3, 2] : (tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %304 = stablehlo.broadcast_in_dim %187, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %305 = stablehlo.multiply %301, %304 : tensor<2x2x4x4xf32>
      %306 = stablehlo.multiply %305, %180 : tensor<2x2x4x4xf32>
      %cst_108 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %307 = stablehlo.reduce(%306 init: %cst_108) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %308 = stablehlo.reshape %307 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %309 = stablehlo.negate %308 : tensor<2x2x4x1xf32>
      %310 = stablehlo.broadcast_in_dim %182, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %311 = stablehlo.divide %301, %310 : tensor<2x2x4x4xf32>
      %cst_109 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %312 = stablehlo.reduce(%309 init: %cst_109) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x1xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %313 = stablehlo.broadcast_in_dim %312, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x4xf32>
      %314 = stablehlo.add %311, %313 : tensor<2x2x4x4xf32>
      %315 = stablehlo.multiply %314, %180 : tensor<2x2x4x4xf32>
      %316 = stablehlo.dot_general %315, %153, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %317 = stablehlo.dot_general %315, %155, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %318 = stablehlo.broadcast_in_dim %303, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_110 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %319 = stablehlo.pad %318, %cst_110, low = [2, 0, 0, 0, 0], high = [0, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %320 = stablehlo.broadcast_in_dim %316, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_111 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %321 = stablehlo.pad %320, %cst_111, low = [1, 0, 0, 0, 0], high = [1, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %322 = stablehlo.add %319, %321 : tensor<3x2x2x4x4xf32>
      %323 = stablehlo.broadcast_in_dim %317, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_112 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %324 = stablehlo.pad %323, %cst_112, low = [0, 0, 0, 0, 0], high = [2, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %325 = stablehlo.add %322, %324 : tensor<3x2x2x4x4xf32>
      %326 = stablehlo.transpose %325, dims = [0, 2, 4, 1, 3] : (tensor<3x2x2x4x4xf32>) -> tensor<3x2x4x2x4xf32>
      %327 = stablehlo.dot_general %326, %iterArg_25, contracting_dims = [0, 1, 2] x [1, 2, 3], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<8x3x2x4xf32>) -> tensor<2x4x8xf32>
      %328 = stablehlo.dot_general %326, %149, contracting_dims = [3, 4] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x8xf32>
      %329 = stablehlo.transpose %328, dims = [3, 0, 1, 2] : (tensor<3x2x4x8xf32>) -> tensor<8x3x2x4xf32>
      %330 = stablehlo.multiply %136, %327 : tensor<2x4x8xf32>
      %cst_113 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %331 = stablehlo.reduce(%330 init: %cst_113) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %332 = stablehlo.reshape %331 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %333 = stablehlo.broadcast_in_dim %144, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %334 = stablehlo.multiply %327, %333 : tensor<2x4x8xf32>
      %335 = stablehlo.multiply %332, %147 : tensor<2x4x1xf32>
      %cst_114 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %336 = stablehlo.broadcast_in_dim %cst_114, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %337 = stablehlo.divide %335, %336 : tensor<2x4x1xf32>
      %cst_115 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %338 = stablehlo.reduce(%337 init: %cst_115) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %339 = stablehlo.broadcast_in_dim %338, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %340 = stablehlo.multiply %136, %339 : tensor<2x4x8xf32>
      %341 = stablehlo.add %334, %340 : tensor<2x4x8xf32>
      %342 = stablehlo.multiply %339, %136 : tensor<2x4x8xf32>
      %343 = stablehlo.add %341, %342 : tensor<2x4x8xf32>
      %344 = stablehlo.negate %343 : tensor<2x4x8xf32>
      %cst_116 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %345 = stablehlo.reduce(%344 init: %cst_116) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %346 = stablehlo.reshape %345 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %347 = stablehlo.add %296, %343 : tensor<2x4x8xf32>
      %cst_117 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %348 = stablehlo.broadcast_in_dim %cst_117, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %349 = stablehlo.divide %346, %348 : tensor<2x4x1xf32>
      %cst_118 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %350 = stablehlo.reduce(%349 init: %cst_118) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %351 = stablehlo.broadcast_in_dim %350, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %352 = stablehlo.add %347, %351 : tensor<2x4x8xf32>
      %353 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}} %352 : tensor<2x4x8xf32>
      %354:3 = sdy.manual_computation(%353, %128#0, %128#1, %128#2, %128#3, %128#4, %128#5) in_shardings=[<@mesh, [{}, {"expert"}, {}]>, <@mesh, [{"expert"}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}]>, <@mesh, [{"expert"}, {}, {}]>] out_shardings=[<@mesh, [{"expert"}, {}, {}]>, <@mesh, [{"expert"}, {}, {}]>, <@mesh, [{}, {"expert"}, {}]>] manual_axes={"mpmd", "expert"} (%arg10: tensor<2x2x8xf32>, %arg11: tensor<8x16xf32>, %arg12: tensor<2x2x8xf32>, %arg13: tensor<2x2x16xi1>, %arg14: tensor<2x2x16xf32>, %arg15: tensor<16x8xf32>, %arg16: tensor<2x2x16xf32>) {
        %448 = stablehlo.optimization_barrier {jaxpp.boundary} %arg10 : tensor<2x2x8xf32>
        %449 = "stablehlo.all_to_all"(%448) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<2x2x8xf32>) -> tensor<2x2x8xf32>
        %450 = stablehlo.dot_general %449, %arg16, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8xf32>, tensor<2x2x16xf32>) -> tensor<8x16xf32>
        %451 = stablehlo.transpose %450, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
        %452 = stablehlo.dot_general %449, %arg15, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x2x8xf32>, tensor<16x8xf32>) -> tensor<2x2x16xf32>
        %453 = stablehlo.broadcast_in_dim %451, dims = [1, 2] : (tensor<16x8xf32>) -> tensor<1x16x8xf32>
        %cst_138 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
        %454 = stablehlo.broadcast_in_dim %cst_138, dims = [] : (tensor<f32>) -> tensor<2x2x16xf32>
        %455 = stablehlo.select %arg13, %452, %454 : tensor<2x2x16xi1>, tensor<2x2x16xf32>
        %456 = stablehlo.dot_general %455, %arg12, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x2x16xf32>, tensor<2x2x8xf32>) -> tensor<16x8xf32>
        %457 = stablehlo.transpose %456, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
        %458 = stablehlo.dot_general %455, %arg11, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x2x16xf32>, tensor<8x16xf32>) -> tensor<2x2x8xf32>
        %459 = stablehlo.broadcast_in_dim %457, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
        %460 = stablehlo.optimization_barrier {jaxpp.boundary} %458 : tensor<2x2x8xf32>
        %461 = "stablehlo.all_to_all"(%460) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, split_count = 2 : i64, split_dimension = 1 : i64}> : (tensor<2x2x8xf32>) -> tensor<2x2x8xf32>
        sdy.return %459, %453, %461 : tensor<1x8x16xf32>, tensor<1x16x8xf32>, tensor<2x2x8xf32>
      } : (tensor<2x4x8xf32>, tensor<16x16xf32>, tensor<4x2x8xf32>, tensor<4x2x16xi1>, tensor<4x2x16xf32>, tensor<32x8xf32>, tensor<4x2x16xf32>) -> (tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<2x4x8xf32>)
      %355 = stablehlo.multiply %114, %354#2 : tensor<2x4x8xf32>
      %cst_119 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %356 = stablehlo.reduce(%355 init: %cst_119) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %357 = stablehlo.reshape %356 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %358 = stablehlo.broadcast_in_dim %122, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %359 = stablehlo.multiply %354#2, %358 : tensor<2x4x8xf32>
      %360 = stablehlo.multiply %357, %125 : tensor<2x4x1xf32>
      %cst_120 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %361 = stablehlo.broadcast_in_dim %cst_120, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %362 = stablehlo.divide %360, %361 : tensor<2x4x1xf32>
      %cst_121 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %363 = stablehlo.reduce(%362 init: %cst_121) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %364 = stablehlo.broadcast_in_dim %363, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %365 = stablehlo.multiply %114, %364 : tensor<2x4x8xf32>
      %366 = stablehlo.add %359, %365 : tensor<2x4x8xf32>
      %367 = stablehlo.multiply %364, %114 : tensor<2x4x8xf32>
      %368 = stablehlo.add %366, %367 : tensor<2x4x8xf32>
      %369 = stablehlo.negate %368 : tensor<2x4x8xf32>
      %cst_122 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %370 = stablehlo.reduce(%369 init: %cst_122) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %371 = stablehlo.reshape %370 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %372 = stablehlo.add %353, %368 : tensor<2x4x8xf32>
      %cst_123 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %373 = stablehlo.broadcast_in_dim %cst_123, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %374 = stablehlo.divide %371, %373 : tensor<2x4x1xf32>
      %cst_124 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %375 = stablehlo.reduce(%374 init: %cst_124) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %376 = stablehlo.broadcast_in_dim %375, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %377 = stablehlo.add %372, %376 : tensor<2x4x8xf32>
      %378 = stablehlo.dot_general %377, %106, contracting_dims = [0, 1] x [0, 3], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x2x4x4xf32>) -> tensor<8x2x4xf32>
      %379 = stablehlo.transpose %378, dims = [1, 2, 0] : (tensor<8x2x4xf32>) -> tensor<2x4x8xf32>
      %380 = stablehlo.dot_general %377, %iterArg_22, contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x2x4xf32>
      %381 = stablehlo.transpose %380, dims = [0, 2, 3, 1] : (tensor<2x4x2x4xf32>) -> tensor<2x2x4x4xf32>
      %382 = stablehlo.dot_general %381, %75, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %383 = stablehlo.dot_general %381, %102, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %384 = stablehlo.transpose %383, dims = [0, 1, 3, 2] : (tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %385 = stablehlo.broadcast_in_dim %105, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %386 = stablehlo.multiply %382, %385 : tensor<2x2x4x4xf32>
      %387 = stablehlo.multiply %386, %98 : tensor<2x2x4x4xf32>
      %cst_125 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %388 = stablehlo.reduce(%387 init: %cst_125) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %389 = stablehlo.reshape %388 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %390 = stablehlo.negate %389 : tensor<2x2x4x1xf32>
      %391 = stablehlo.broadcast_in_dim %100, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %392 = stablehlo.divide %382, %391 : tensor<2x2x4x4xf32>
      %cst_126 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %393 = stablehlo.reduce(%390 init: %cst_126) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x1xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %394 = stablehlo.broadcast_in_dim %393, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x4xf32>
      %395 = stablehlo.add %392, %394 : tensor<2x2x4x4xf32>
      %396 = stablehlo.multiply %395, %98 : tensor<2x2x4x4xf32>
      %397 = stablehlo.dot_general %396, %71, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %398 = stablehlo.dot_general %396, %73, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %399 = stablehlo.broadcast_in_dim %384, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_127 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %400 = stablehlo.pad %399, %cst_127, low = [2, 0, 0, 0, 0], high = [0, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %401 = stablehlo.broadcast_in_dim %397, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_128 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %402 = stablehlo.pad %401, %cst_128, low = [1, 0, 0, 0, 0], high = [1, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %403 = stablehlo.add %400, %402 : tensor<3x2x2x4x4xf32>
      %404 = stablehlo.broadcast_in_dim %398, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_129 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %405 = stablehlo.pad %404, %cst_129, low = [0, 0, 0, 0, 0], high = [2, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %406 = stablehlo.add %403, %405 : tensor<3x2x2x4x4xf32>
      %407 = stablehlo.transpose %406, dims = [0, 2, 4, 1, 3] : (tensor<3x2x2x4x4xf32>) -> tensor<3x2x4x2x4xf32>
      %408 = stablehlo.dot_general %407, %iterArg_21, contracting_dims = [0, 1, 2] x [1, 2, 3], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<8x3x2x4xf32>) -> tensor<2x4x8xf32>
      %409 = stablehlo.dot_general %407, %67, contracting_dims = [3, 4] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x8xf32>
      %410 = stablehlo.transpose %409, dims = [3, 0, 1, 2] : (tensor<3x2x4x8xf32>) -> tensor<8x3x2x4xf32>
      %411 = stablehlo.multiply %54, %408 : tensor<2x4x8xf32>
      %cst_130 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %412 = stablehlo.reduce(%411 init: %cst_130) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %413 = stablehlo.reshape %412 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %414 = stablehlo.broadcast_in_dim %62, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %415 = stablehlo.multiply %408, %414 : tensor<2x4x8xf32>
      %416 = stablehlo.multiply %413, %65 : tensor<2x4x1xf32>
      %cst_131 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %417 = stablehlo.broadcast_in_dim %cst_131, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %418 = stablehlo.divide %416, %417 : tensor<2x4x1xf32>
      %cst_132 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %419 = stablehlo.reduce(%418 init: %cst_132) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %420 = stablehlo.broadcast_in_dim %419, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %421 = stablehlo.multiply %54, %420 : tensor<2x4x8xf32>
      %422 = stablehlo.add %415, %421 : tensor<2x4x8xf32>
      %423 = stablehlo.multiply %420, %54 : tensor<2x4x8xf32>
      %424 = stablehlo.add %422, %423 : tensor<2x4x8xf32>
      %425 = stablehlo.negate %424 : tensor<2x4x8xf32>
      %cst_133 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %426 = stablehlo.reduce(%425 init: %cst_133) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %427 = stablehlo.reshape %426 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %428 = stablehlo.add %377, %424 : tensor<2x4x8xf32>
      %cst_134 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %429 = stablehlo.broadcast_in_dim %cst_134, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %430 = stablehlo.divide %427, %429 : tensor<2x4x1xf32>
      %cst_135 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %431 = stablehlo.reduce(%430 init: %cst_135) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %432 = stablehlo.broadcast_in_dim %431, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %433 = stablehlo.add %428, %432 : tensor<2x4x8xf32>
      %cst_136 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %434 = stablehlo.broadcast_in_dim %cst_136, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
      %435 = "stablehlo.scatter"(%434, %47, %433) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
      ^bb0(%arg10: tensor<f32>, %arg11: tensor<f32>):
        %448 = stablehlo.add %arg10, %arg11 : tensor<f32>
        stablehlo.return %448 : tensor<f32>
      }) : (tensor<16x8xf32>, tensor<2x4x1xi32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
      %436 = stablehlo.add %249, %435 : tensor<16x8xf32>
      %c_137 = stablehlo.constant dense<1> : tensor<i32>
      %437 = stablehlo.add %iterArg_29, %c_137 : tensor<i32>
      %438 = func.call @dynamic_update_index_in_dim(%iterArg_30, %240, %iterArg_29) : (tensor<4xf32>, tensor<f32>, tensor<i32>) -> tensor<4xf32>
      %439 = stablehlo.add %iterArg_31, %354#1 : tensor<2x16x8xf32>
      %440 = stablehlo.add %iterArg_32, %379 : tensor<2x4x8xf32>
      %441 = stablehlo.add %iterArg_33, %410 : tensor<8x3x2x4xf32>
      %442 = stablehlo.add %iterArg_34, %354#0 : tensor<2x8x16xf32>
      %443 = stablehlo.add %iterArg_35, %273#1 : tensor<2x16x8xf32>
      %444 = stablehlo.add %iterArg_36, %298 : tensor<2x4x8xf32>
      %445 = stablehlo.add %iterArg_37, %329 : tensor<8x3x2x4xf32>
      %446 = stablehlo.add %iterArg_38, %273#0 : tensor<2x8x16xf32>
      %447 = stablehlo.add %iterArg_39, %436 : tensor<16x8xf32>
      stablehlo.return %iterArg, %iterArg_20, %iterArg_21, %iterArg_22, %iterArg_23, %iterArg_24, %iterArg_25, %iterArg_26, %iterArg_27, %iterArg_28, %437, %438, %439, %440, %441, %442, %443, %444, %445, %446, %447 : tensor<4x2x5xi32>, tensor<16x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<i32>, tensor<4xf32>, tensor<2x16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<2x8x16xf32>, tensor<16x8xf32>
    }
    %cst_9 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<2x16x8xf32>
    %12 = stablehlo.multiply %11, %10#12 : tensor<2x16x8xf32>
    %13 = stablehlo.subtract %arg0, %12 : tensor<2x16x8xf32>
    %cst_10 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %15 = stablehlo.multiply %14, %10#13 : tensor<2x4x8xf32>
    %16 = stablehlo.subtract %arg1, %15 : tensor<2x4x8xf32>
    %cst_11 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %18 = stablehlo.multiply %17, %10#14 : tensor<8x3x2x4xf32>
    %19 = stablehlo.subtract %arg2, %18 : tensor<8x3x2x4xf32>
    %cst_12 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<2x8x16xf32>
    %21 = stablehlo.multiply %20, %10#15 : tensor<2x8x16xf32>
    %22 = stablehlo.subtract %arg3, %21 : tensor<2x8x16xf32>
    %cst_13 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %23 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<2x16x8xf32>
    %24 = stablehlo.multiply %23, %10#16 : tensor<2x16x8xf32>
    %25 = stablehlo.subtract %arg4, %24 : tensor<2x16x8xf32>
    %cst_14 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %26 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %27 = stablehlo.multiply %26, %10#17 : tensor<2x4x8xf32>
    %28 = stablehlo.subtract %arg5, %27 : tensor<2x4x8xf32>
    %cst_15 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %30 = stablehlo.multiply %29, %10#18 : tensor<8x3x2x4xf32>
    %31 = stablehlo.subtract %arg6, %30 : tensor<8x3x2x4xf32>
    %cst_16 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %32 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<2x8x16xf32>
    %33 = stablehlo.multiply %32, %10#19 : tensor<2x8x16xf32>
    %34 = stablehlo.subtract %arg7, %33 : tensor<2x8x16xf32>
    %cst_17 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %35 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %36 = stablehlo.multiply %35, %10#20 : tensor<16x8xf32>
    %37 = stablehlo.subtract %arg8, %36 : tensor<16x8xf32>
    %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %38 = stablehlo.reduce(%10#11 init: %cst_18) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %cst_19 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %39 = stablehlo.divide %38, %cst_19 : tensor<f32>
    return %13, %16, %19, %22, %25, %28, %31, %34, %37, %39 : tensor<2x16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<2x8x16xf32>, tensor<2x16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<2x8x16xf32>, tensor<16x8xf32>, tensor<f32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<4x2x5xi32>, %arg1: tensor<i32>) -> tensor<2x5xi32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 2, 5] : (tensor<4x2x5xi32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5xi32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x5xi32>) -> tensor<2x5xi32>
    return %1 : tensor<2x5xi32>
  }
  func.func private @relu(%arg0: tensor<2x2x16xf32>) -> tensor<2x2x16xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x16xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<2x2x16xf32>
    return %1 : tensor<2x2x16xf32>
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
