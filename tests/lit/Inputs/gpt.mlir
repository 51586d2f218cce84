// Written by gpt.py.
module @jit_train_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=1]>
  func.func public @main(%arg0: tensor<16x8xf32> {jax.buffer_donor = true}, %arg1: tensor<2x4x8xf32> {jax.buffer_donor = true}, %arg2: tensor<8x3x2x4xf32> {jax.buffer_donor = true}, %arg3: tensor<8x16xf32> {jax.buffer_donor = true}, %arg4: tensor<16x8xf32> {jax.buffer_donor = true}, %arg5: tensor<2x4x8xf32> {jax.buffer_donor = true}, %arg6: tensor<8x3x2x4xf32> {jax.buffer_donor = true}, %arg7: tensor<8x16xf32> {jax.buffer_donor = true}, %arg8: tensor<16x8xf32> {jax.buffer_donor = true}, %arg9: tensor<4x8xf32> {jax.buffer_donor = true}, %arg10: tensor<i32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, []>}, %arg11: tensor<16x8xf32> {jax.buffer_donor = true}, %arg12: tensor<2x4x8xf32> {jax.buffer_donor = true}, %arg13: tensor<8x3x2x4xf32> {jax.buffer_donor = true}, %arg14: tensor<8x16xf32> {jax.buffer_donor = true}, %arg15: tensor<16x8xf32> {jax.buffer_donor = true}, %arg16: tensor<2x4x8xf32> {jax.buffer_donor = true}, %arg17: tensor<8x3x2x4xf32> {jax.buffer_donor = true}, %arg18: tensor<8x16xf32> {jax.buffer_donor = true}, %arg19: tensor<16x8xf32> {jax.buffer_donor = true}, %arg20: tensor<4x8xf32> {jax.buffer_donor = true}, %arg21: tensor<16x8xf32> {jax.buffer_donor = true}, %arg22: tensor<2x4x8xf32> {jax.buffer_donor = true}, %arg23: tensor<8x3x2x4xf32> {jax.buffer_donor = true}, %arg24: tensor<8x16xf32> {jax.buffer_donor = true}, %arg25: tensor<16x8xf32> {jax.buffer_donor = true}, %arg26: tensor<2x4x8xf32> {jax.buffer_donor = true}, %arg27: tensor<8x3x2x4xf32> {jax.buffer_donor = true}, %arg28: tensor<8x16xf32> {jax.buffer_donor = true}, %arg29: tensor<16x8xf32> {jax.buffer_donor = true}, %arg30: tensor<4x8xf32> {jax.buffer_donor = true}, %arg31: tensor<i32> {jax.buffer_donor = true, sdy.sharding = #sdy.sharding<@mesh, []>}, %arg32: tensor<4x2x5xi32>) -> (tensor<16x8xf32> {jax.result_info = "result[0][0]['blocks'][0]['down']", jaxpp.feeds = 0 : i64}, tensor<2x4x8xf32> {jax.result_info = "result[0][0]['blocks'][0]['out']", jaxpp.feeds = 1 : i64}, tensor<8x3x2x4xf32> {jax.result_info = "result[0][0]['blocks'][0]['qkv']", jaxpp.feeds = 2 : i64}, tensor<8x16xf32> {jax.result_info = "result[0][0]['blocks'][0]['up']", jaxpp.feeds = 3 : i64}, tensor<16x8xf32> {jax.result_info = "result[0][0]['blocks'][1]['down']", jaxpp.feeds = 4 : i64}, tensor<2x4x8xf32> {jax.result_info = "result[0][0]['blocks'][1]['out']", jaxpp.feeds = 5 : i64}, tensor<8x3x2x4xf32> {jax.result_info = "result[0][0]['blocks'][1]['qkv']", jaxpp.feeds = 6 : i64}, tensor<8x16xf32> {jax.result_info = "result[0][0]['blocks'][1]['up']", jaxpp.feeds = 7 : i64}, tensor<16x8xf32> {jax.result_info = "result[0][0]['embed']", jaxpp.feeds = 8 : i64}, tensor<4x8xf32> {jax.result_info = "result[0][0]['position']", jaxpp.feeds = 9 : i64}, tensor<i32> {jax.result_info = "result[0][1][1][0].count", jaxpp.feeds = 10 : i64}, tensor<16x8xf32> {jax.result_info = "result[0][1][1][0].mu['blocks'][0]['down']", jaxpp.feeds = 11 : i64}, tensor<2x4x8xf32> {jax.result_info = "result[0][1][1][0].mu['blocks'][0]['out']", jaxpp.feeds = 12 : i64}, tensor<8x3x2x4xf32> {jax.result_info = "result[0][1][1][0].mu['blocks'][0]['qkv']", jaxpp.feeds = 13 : i64}, tensor<8x16xf32> {jax.result_info = "result[0][1][1][0].mu['blocks'][0]['up']", jaxpp.feeds = 14 : i64}, tensor<16x8xf32> {jax.result_info = "result[0][1][1][0].mu['blocks'][1]['down']", jaxpp.feeds = 15 : i64}, tensor<2x4x8xf32> {jax.result_info = "result[0][1][1][0].mu['blocks'][1]['out']", jaxpp.feeds = 16 : i64}, tensor<8x3x2x4xf32> {jax.result_info = "result[0][1][1][0].mu['blocks'][1]['qkv']", jaxpp.feeds = 17 : i64}, tensor<8x16xf32> {jax.result_info = "result[0][1][1][0].mu['blocks'][1]['up']", jaxpp.feeds = 18 : i64}, tensor<16x8xf32> {jax.result_info = "result[0][1][1][0].mu['embed']", jaxpp.feeds = 19 : i64}, tensor<4x8xf32> {jax.result_info = "result[0][1][1][0].mu['position']", jaxpp.feeds = 20 : i64}, tensor<16x8xf32> {jax.result_info = "result[0][1][1][0].nu['blocks'][0]['down']", jaxpp.feeds = 21 : i64}, tensor<2x4x8xf32> {jax.result_info = "result[0][1][1][0].nu['blocks'][0]['out']", jaxpp.feeds = 22 : i64}, tensor<8x3x2x4xf32> {jax.result_info = "result[0][1][1][0].nu['blocks'][0]['qkv']", jaxpp.feeds = 23 : i64}, tensor<8x16xf32> {jax.result_info = "result[0][1][1][0].nu['blocks'][0]['up']", jaxpp.feeds = 24 : i64}, tensor<16x8xf32> {jax.result_info = "result[0][1][1][0].nu['blocks'][1]['down']", jaxpp.feeds = 25 : i64}, tensor<2x4x8xf32> {jax.result_info = "result[0][1][1][0].nu['blocks'][1]['out']", jaxpp.feeds = 26 : i64}, tensor<8x3x2x4xf32> {jax.result_info = "result[0][1][1][0].nu['blocks'][1]['qkv']", jaxpp.feeds = 27 : i64}, tensor<8x16xf32> {jax.result_info = "result[0][1][1][0].nu['blocks'][1]['up']", jaxpp.feeds = 28 : i64}, tensor<16x8xf32> {jax.result_info = "result[0][1][1][0].nu['embed']", jaxpp.feeds = 29 : i64}, tensor<4x8xf32> {jax.result_info = "result[0][1][1][0].nu['position']", jaxpp.feeds = 30 : i64}, tensor<i32> {jax.result_info = "result[0][1][1][2].count", jaxpp.feeds = 31 : i64}, tensor<f32> {jax.result_info = "result[1]"}) {
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
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %11:23 = stablehlo.while(%iterArg = %arg32, %iterArg_132 = %arg8, %iterArg_133 = %arg9, %iterArg_134 = %arg2, %iterArg_135 = %arg1, %iterArg_136 = %arg3, %iterArg_137 = %arg0, %iterArg_138 = %arg6, %iterArg_139 = %arg5, %iterArg_140 = %arg7, %iterArg_141 = %arg4, %iterArg_142 = %c, %iterArg_143 = %0, %iterArg_144 = %1, %iterArg_145 = %2, %iterArg_146 = %3, %iterArg_147 = %4, %iterArg_148 = %5, %iterArg_149 = %6, %iterArg_150 = %7, %iterArg_151 = %8, %iterArg_152 = %9, %iterArg_153 = %10) : tensor<4x2x5xi32>, tensor<16x8xf32>, tensor<4x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<i32>, tensor<4xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<4x8xf32> attributes {jaxpp.microbatch_loop = {length = 4 : i64, schedule = "schedule: 1f1b\0Aplacement: 0 1\0Amesh 0: 0F0 0F1 .   0B0 0F2 0B1 0F3 0B2 .   0B3\0Amesh 1: .   1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"}}
    cond {
      %c_154 = stablehlo.constant dense<4> : tensor<i32>
      %418 = stablehlo.compare LT, %iterArg_142, %c_154, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %418 : tensor<i1>
    } do {
      %c_154 = stablehlo.constant dense<1> : tensor<i32>
      %418 = stablehlo.add %iterArg_142, %c_154 : tensor<i32>
      %419 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_142) : (tensor<4x2x5xi32>, tensor<i32>) -> tensor<2x5xi32>
      %420 = stablehlo.slice %419 [0:2, 0:4] : (tensor<2x5xi32>) -> tensor<2x4xi32>
      %c_155 = stablehlo.constant dense<0> : tensor<i32>
      %421 = stablehlo.broadcast_in_dim %c_155, dims = [] : (tensor<i32>) -> tensor<2x4xi32>
      %422 = stablehlo.compare LT, %420, %421, SIGNED : (tensor<2x4xi32>, tensor<2x4xi32>) -> tensor<2x4xi1>
      %c_156 = stablehlo.constant dense<16> : tensor<i32>
      %423 = stablehlo.broadcast_in_dim %c_156, dims = [] : (tensor<i32>) -> tensor<2x4xi32>
      %424 = stablehlo.add %420, %423 : tensor<2x4xi32>
      %425 = stablehlo.select %422, %424, %420 : tensor<2x4xi1>, tensor<2x4xi32>
      %426 = stablehlo.broadcast_in_dim %425, dims = [0, 1] : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
      %427 = "stablehlo.gather"(%iterArg_132, %426) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<16x8xf32>, tensor<2x4x1xi32>) -> tensor<2x4x8xf32>
      %428 = stablehlo.broadcast_in_dim %iterArg_133, dims = [1, 2] : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
      %429 = stablehlo.broadcast_in_dim %428, dims = [0, 1, 2] : (tensor<1x4x8xf32>) -> tensor<2x4x8xf32>
      %430 = stablehlo.add %427, %429 : tensor<2x4x8xf32>
      %cst_157 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %431 = stablehlo.reduce(%430 init: %cst_157) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %432 = stablehlo.broadcast_in_dim %431, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_158 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %433 = stablehlo.broadcast_in_dim %cst_158, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %434 = stablehlo.divide %432, %433 : tensor<2x4x1xf32>
      %435 = stablehlo.broadcast_in_dim %434, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %436 = stablehlo.subtract %430, %435 : tensor<2x4x8xf32>
      %437 = stablehlo.multiply %436, %436 : tensor<2x4x8xf32>
      %cst_159 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %438 = stablehlo.reduce(%437 init: %cst_159) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %439 = stablehlo.broadcast_in_dim %438, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_160 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %440 = stablehlo.broadcast_in_dim %cst_160, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %441 = stablehlo.divide %439, %440 : tensor<2x4x1xf32>
      %cst_161 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %442 = stablehlo.broadcast_in_dim %cst_161, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %443 = stablehlo.add %441, %442 : tensor<2x4x1xf32>
      %444 = stablehlo.rsqrt %443 : tensor<2x4x1xf32>
      %445 = stablehlo.divide %444, %443 : tensor<2x4x1xf32>
      %cst_162 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %446 = stablehlo.broadcast_in_dim %cst_162, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %447 = stablehlo.multiply %446, %445 : tensor<2x4x1xf32>
      %448 = stablehlo.broadcast_in_dim %444, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %449 = stablehlo.multiply %436, %448 : tensor<2x4x8xf32>
      %450 = stablehlo.dot_general %iterArg_134, %449, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x3x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x2x4xf32>
      %451 = stablehlo.transpose %450, dims = [0, 3, 1, 4, 2] : (tensor<3x2x4x2x4xf32>) -> tensor<3x2x2x4x4xf32>
      %452 = stablehlo.slice %451 [0:1, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %453 = stablehlo.reshape %452 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %454 = stablehlo.slice %451 [1:2, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %455 = stablehlo.reshape %454 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %456 = stablehlo.slice %451 [2:3, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %457 = stablehlo.reshape %456 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %458 = stablehlo.dot_general %453, %455, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %cst_163 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
      %459 = stablehlo.broadcast_in_dim %cst_163, dims = [] : (tensor<f32>) -> tensor<2x2x4x4xf32>
      %460 = stablehlo.multiply %458, %459 : tensor<2x2x4x4xf32>
      %c_164 = stablehlo.constant dense<true> : tensor<i1>
      %461 = stablehlo.broadcast_in_dim %c_164, dims = [] : (tensor<i1>) -> tensor<4x4xi1>
      %462 = func.call @tril(%461) : (tensor<4x4xi1>) -> tensor<4x4xi1>
      %cst_165 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
      %463:3 = func.call @_where(%462, %460, %cst_165) : (tensor<4x4xi1>, tensor<2x2x4x4xf32>, tensor<f32>) -> (tensor<2x2x4x4xf32>, tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>)
      %cst_166 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %464 = stablehlo.reduce(%463#0 init: %cst_166) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %465 = stablehlo.reshape %464 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %466 = stablehlo.broadcast_in_dim %465, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %467 = stablehlo.compare EQ, %463#0, %466, FLOAT : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xi1>
      %468 = stablehlo.convert %467 : (tensor<2x2x4x4xi1>) -> tensor<2x2x4x4xf32>
      %cst_167 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %469 = stablehlo.reduce(%468 init: %cst_167) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %cst_168 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %470 = stablehlo.broadcast_in_dim %cst_168, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %471 = stablehlo.maximum %470, %464 : tensor<2x2x4xf32>
      %472 = stablehlo.compare EQ, %464, %471, FLOAT : (tensor<2x2x4xf32>, tensor<2x2x4xf32>) -> tensor<2x2x4xi1>
      %cst_169 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %473 = stablehlo.broadcast_in_dim %cst_169, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %cst_170 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %474 = stablehlo.broadcast_in_dim %cst_170, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %475 = stablehlo.select %472, %473, %474 : tensor<2x2x4xi1>, tensor<2x2x4xf32>
      %cst_171 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %476 = stablehlo.broadcast_in_dim %cst_171, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %477 = stablehlo.compare EQ, %476, %471, FLOAT : (tensor<2x2x4xf32>, tensor<2x2x4xf32>) -> tensor<2x2x4xi1>
      %cst_172 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %478 = stablehlo.broadcast_in_dim %cst_172, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %cst_173 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %479 = stablehlo.broadcast_in_dim %cst_173, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %480 = stablehlo.select %477, %478, %479 : tensor<2x2x4xi1>, tensor<2x2x4xf32>
      %481 = stablehlo.divide %475, %480 : tensor<2x2x4xf32>
      %482 = stablehlo.broadcast_in_dim %471, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %483 = stablehlo.broadcast_in_dim %482, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %484 = stablehlo.subtract %463#0, %483 : tensor<2x2x4x4xf32>
      %485 = stablehlo.exponential %484 : tensor<2x2x4x4xf32>
      %cst_174 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %486 = stablehlo.reduce(%485 init: %cst_174) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %487 = stablehlo.broadcast_in_dim %486, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %488 = stablehlo.broadcast_in_dim %487, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %489 = stablehlo.divide %485, %488 : tensor<2x2x4x4xf32>
      %490 = stablehlo.multiply %487, %487 : tensor<2x2x4x1xf32>
      %cst_175 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %491 = stablehlo.broadcast_in_dim %cst_175, dims = [] : (tensor<f32>) -> tensor<2x2x4x1xf32>
      %492 = stablehlo.divide %491, %490 : tensor<2x2x4x1xf32>
      %493 = stablehlo.dot_general %457, %489, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %494 = stablehlo.dot_general %493, %iterArg_135, contracting_dims = [2, 1] x [1, 0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
      %495 = stablehlo.add %430, %494 : tensor<2x4x8xf32>
      %cst_176 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %496 = stablehlo.reduce(%495 init: %cst_176) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %497 = stablehlo.broadcast_in_dim %496, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_177 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %498 = stablehlo.broadcast_in_dim %cst_177, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %499 = stablehlo.divide %497, %498 : tensor<2x4x1xf32>
      %500 = stablehlo.broadcast_in_dim %499, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %501 = stablehlo.subtract %495, %500 : tensor<2x4x8xf32>
      %502 = stablehlo.multiply %501, %501 : tensor<2x4x8xf32>
      %cst_178 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %503 = stablehlo.reduce(%502 init: %cst_178) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %504 = stablehlo.broadcast_in_dim %503, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_179 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %505 = stablehlo.broadcast_in_dim %cst_179, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %506 = stablehlo.divide %504, %505 : tensor<2x4x1xf32>
      %cst_180 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %507 = stablehlo.broadcast_in_dim %cst_180, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %508 = stablehlo.add %506, %507 : tensor<2x4x1xf32>
      %509 = stablehlo.rsqrt %508 : tensor<2x4x1xf32>
      %510 = stablehlo.divide %509, %508 : tensor<2x4x1xf32>
      %cst_181 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %511 = stablehlo.broadcast_in_dim %cst_181, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %512 = stablehlo.multiply %511, %510 : tensor<2x4x1xf32>
      %513 = stablehlo.broadcast_in_dim %509, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %514 = stablehlo.multiply %501, %513 : tensor<2x4x8xf32>
      %515 = stablehlo.dot_general %514, %iterArg_136, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
      %516 = func.call @relu(%515) : (tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
      %cst_182 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %517 = stablehlo.broadcast_in_dim %cst_182, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %518 = stablehlo.compare GT, %515, %517, FLOAT : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xi1>
      %cst_183 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %519 = stablehlo.broadcast_in_dim %cst_183, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %520 = stablehlo.dot_general %516, %iterArg_137, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<16x8xf32>) -> tensor<2x4x8xf32>
      %521 = stablehlo.add %495, %520 : tensor<2x4x8xf32>
      %522 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}} %521 : tensor<2x4x8xf32>
      %cst_184 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %523 = stablehlo.reduce(%522 init: %cst_184) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %524 = stablehlo.broadcast_in_dim %523, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_185 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %525 = stablehlo.broadcast_in_dim %cst_185, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %526 = stablehlo.divide %524, %525 : tensor<2x4x1xf32>
      %527 = stablehlo.broadcast_in_dim %526, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %528 = stablehlo.subtract %522, %527 : tensor<2x4x8xf32>
      %529 = stablehlo.multiply %528, %528 : tensor<2x4x8xf32>
      %cst_186 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %530 = stablehlo.reduce(%529 init: %cst_186) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %531 = stablehlo.broadcast_in_dim %530, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_187 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %532 = stablehlo.broadcast_in_dim %cst_187, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %533 = stablehlo.divide %531, %532 : tensor<2x4x1xf32>
      %cst_188 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %534 = stablehlo.broadcast_in_dim %cst_188, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %535 = stablehlo.add %533, %534 : tensor<2x4x1xf32>
      %536 = stablehlo.rsqrt %535 : tensor<2x4x1xf32>
      %537 = stablehlo.divide %536, %535 : tensor<2x4x1xf32>
      %cst_189 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %538 = stablehlo.broadcast_in_dim %cst_189, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %539 = stablehlo.multiply %538, %537 : tensor<2x4x1xf32>
      %540 = stablehlo.broadcast_in_dim %536, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %541 = stablehlo.multiply %528, %540 : tensor<2x4x8xf32>
      %542 = stablehlo.dot_general %iterArg_138, %541, contracting_dims = [0] x [2], precision = [DEFAULT, DEFAULT] : (tensor<8x3x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x2x4xf32>
      %543 = stablehlo.transpose %542, dims = [0, 3, 1, 4, 2] : (tensor<3x2x4x2x4xf32>) -> tensor<3x2x2x4x4xf32>
      %544 = stablehlo.slice %543 [0:1, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %545 = stablehlo.reshape %544 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %546 = stablehlo.slice %543 [1:2, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %547 = stablehlo.reshape %546 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %548 = stablehlo.slice %543 [2:3, 0:2, 0:2, 0:4, 0:4] : (tensor<3x2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %549 = stablehlo.reshape %548 : (tensor<1x2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %550 = stablehlo.dot_general %545, %547, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %cst_190 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
      %551 = stablehlo.broadcast_in_dim %cst_190, dims = [] : (tensor<f32>) -> tensor<2x2x4x4xf32>
      %552 = stablehlo.multiply %550, %551 : tensor<2x2x4x4xf32>
      %c_191 = stablehlo.constant dense<true> : tensor<i1>
      %553 = stablehlo.broadcast_in_dim %c_191, dims = [] : (tensor<i1>) -> tensor<4x4xi1>
      %554 = func.call @tril(%553) : (tensor<4x4xi1>) -> tensor<4x4xi1>
      %cst_192 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
      %555:3 = func.call @_where(%554, %552, %cst_192) : (tensor<4x4xi1>, tensor<2x2x4x4xf32>, tensor<f32>) -> (tensor<2x2x4x4xf32>, tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>)
      %cst_193 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %556 = stablehlo.reduce(%555#0 init: %cst_193) applies stablehlo.maximum across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %557 = stablehlo.reshape %556 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %558 = stablehlo.broadcast_in_dim %557, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %559 = stablehlo.compare EQ, %555#0, %558, FLOAT : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xi1>
      %560 = stablehlo.convert %559 : (tensor<2x2x4x4xi1>) -> tensor<2x2x4x4xf32>
      %cst_194 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %561 = stablehlo.reduce(%560 init: %cst_194) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %cst_195 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %562 = stablehlo.broadcast_in_dim %cst_195, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %563 = stablehlo.maximum %562, %556 : tensor<2x2x4xf32>
      %564 = stablehlo.compare EQ, %556, %563, FLOAT : (tensor<2x2x4xf32>, tensor<2x2x4xf32>) -> tensor<2x2x4xi1>
      %cst_196 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %565 = stablehlo.broadcast_in_dim %cst_196, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %cst_197 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %566 = stablehlo.broadcast_in_dim %cst_197, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %567 = stablehlo.select %564, %565, %566 : tensor<2x2x4xi1>, tensor<2x2x4xf32>
      %cst_198 = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %568 = stablehlo.broadcast_in_dim %cst_198, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %569 = stablehlo.compare EQ, %568, %563, FLOAT : (tensor<2x2x4xf32>, tensor<2x2x4xf32>) -> tensor<2x2x4xi1>
      %cst_199 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %570 = stablehlo.broadcast_in_dim %cst_199, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %cst_200 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %571 = stablehlo.broadcast_in_dim %cst_200, dims = [] : (tensor<f32>) -> tensor<2x2x4xf32>
      %572 = stablehlo.select %569, %570, %571 : tensor<2x2x4xi1>, tensor<2x2x4xf32>
      %573 = stablehlo.divide %567, %572 : tensor<2x2x4xf32>
      %574 = stablehlo.broadcast_in_dim %563, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %575 = stablehlo.broadcast_in_dim %574, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %576 = stablehlo.subtract %555#0, %575 : tensor<2x2x4x4xf32>
      %577 = stablehlo.exponential %576 : tensor<2x2x4x4xf32>
      %cst_201 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %578 = stablehlo.reduce(%577 init: %cst_201) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %579 = stablehlo.broadcast_in_dim %578, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %580 = stablehlo.broadcast_in_dim %579, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %581 = stablehlo.divide %577, %580 : tensor<2x2x4x4xf32>
      %582 = stablehlo.multiply %579, %579 : tensor<2x2x4x1xf32>
      %cst_202 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %583 = stablehlo.broadcast_in_dim %cst_202, dims = [] : (tensor<f32>) -> tensor<2x2x4x1xf32>
      %584 = stablehlo.divide %583, %582 : tensor<2x2x4x1xf32>
      %585 = stablehlo.dot_general %549, %581, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %586 = stablehlo.dot_general %585, %iterArg_139, contracting_dims = [2, 1] x [1, 0], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
      %587 = stablehlo.add %522, %586 : tensor<2x4x8xf32>
      %cst_203 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %588 = stablehlo.reduce(%587 init: %cst_203) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %589 = stablehlo.broadcast_in_dim %588, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_204 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %590 = stablehlo.broadcast_in_dim %cst_204, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %591 = stablehlo.divide %589, %590 : tensor<2x4x1xf32>
      %592 = stablehlo.broadcast_in_dim %591, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %593 = stablehlo.subtract %587, %592 : tensor<2x4x8xf32>
      %594 = stablehlo.multiply %593, %593 : tensor<2x4x8xf32>
      %cst_205 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %595 = stablehlo.reduce(%594 init: %cst_205) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %596 = stablehlo.broadcast_in_dim %595, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_206 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %597 = stablehlo.broadcast_in_dim %cst_206, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %598 = stablehlo.divide %596, %597 : tensor<2x4x1xf32>
      %cst_207 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %599 = stablehlo.broadcast_in_dim %cst_207, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %600 = stablehlo.add %598, %599 : tensor<2x4x1xf32>
      %601 = stablehlo.rsqrt %600 : tensor<2x4x1xf32>
      %602 = stablehlo.divide %601, %600 : tensor<2x4x1xf32>
      %cst_208 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %603 = stablehlo.broadcast_in_dim %cst_208, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %604 = stablehlo.multiply %603, %602 : tensor<2x4x1xf32>
      %605 = stablehlo.broadcast_in_dim %601, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %606 = stablehlo.multiply %593, %605 : tensor<2x4x8xf32>
      %607 = stablehlo.dot_general %606, %iterArg_140, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
      %608 = func.call @relu(%607) : (tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
      %cst_209 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %609 = stablehlo.broadcast_in_dim %cst_209, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %610 = stablehlo.compare GT, %607, %609, FLOAT : (tensor<2x4x16xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xi1>
      %cst_210 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %611 = stablehlo.broadcast_in_dim %cst_210, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %612 = stablehlo.dot_general %608, %iterArg_141, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<16x8xf32>) -> tensor<2x4x8xf32>
      %613 = stablehlo.add %587, %612 : tensor<2x4x8xf32>
      %614 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}} %613 : tensor<2x4x8xf32>
      %cst_211 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %615 = stablehlo.reduce(%614 init: %cst_211) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %616 = stablehlo.broadcast_in_dim %615, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_212 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %617 = stablehlo.broadcast_in_dim %cst_212, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %618 = stablehlo.divide %616, %617 : tensor<2x4x1xf32>
      %619 = stablehlo.broadcast_in_dim %618, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %620 = stablehlo.subtract %614, %619 : tensor<2x4x8xf32>
      %621 = stablehlo.multiply %620, %620 : tensor<2x4x8xf32>
      %cst_213 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %622 = stablehlo.reduce(%621 init: %cst_213) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %623 = stablehlo.broadcast_in_dim %622, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_214 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %624 = stablehlo.broadcast_in_dim %cst_214, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %625 = stablehlo.divide %623, %624 : tensor<2x4x1xf32>
      %cst_215 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
      %626 = stablehlo.broadcast_in_dim %cst_215, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %627 = stablehlo.add %625, %626 : tensor<2x4x1xf32>
      %628 = stablehlo.rsqrt %627 : tensor<2x4x1xf32>
      %629 = stablehlo.divide %628, %627 : tensor<2x4x1xf32>
      %cst_216 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
      %630 = stablehlo.broadcast_in_dim %cst_216, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %631 = stablehlo.multiply %630, %629 : tensor<2x4x1xf32>
      %632 = stablehlo.broadcast_in_dim %628, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %633 = stablehlo.multiply %620, %632 : tensor<2x4x8xf32>
      %634 = stablehlo.transpose %iterArg_132, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
      %635 = stablehlo.dot_general %633, %634, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<8x16xf32>) -> tensor<2x4x16xf32>
      %636:3 = func.call @log_softmax(%635) : (tensor<2x4x16xf32>) -> (tensor<2x4x16xf32>, tensor<2x4x16xf32>, tensor<2x4x1xf32>)
      %637 = stablehlo.slice %419 [0:2, 1:5] : (tensor<2x5xi32>) -> tensor<2x4xi32>
      %638 = stablehlo.broadcast_in_dim %637, dims = [0, 1] : (tensor<2x4xi32>) -> tensor<2x4x1xi32>
      %639:2 = func.call @take_along_axis(%636#0, %638) : (tensor<2x4x16xf32>, tensor<2x4x1xi32>) -> (tensor<2x4x1xf32>, tensor<2x4x1x1xi32>)
      %cst_217 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %640 = stablehlo.reduce(%639#0 init: %cst_217) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<f32>
      %cst_218 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %641 = stablehlo.divide %640, %cst_218 : tensor<f32>
      %642 = stablehlo.negate %641 : tensor<f32>
      %cst_219 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %643 = stablehlo.negate %cst_219 : tensor<f32>
      %cst_220 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %644 = stablehlo.divide %643, %cst_220 : tensor<f32>
      %645 = stablehlo.broadcast_in_dim %644, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %646 = func.call @take_along_axis_0(%639#1, %645) : (tensor<2x4x1x1xi32>, tensor<2x4x1xf32>) -> tensor<2x4x16xf32>
      %647 = func.call @log_softmax_1(%636#1, %636#2, %646) : (tensor<2x4x16xf32>, tensor<2x4x1xf32>, tensor<2x4x16xf32>) -> tensor<2x4x16xf32>
      %648 = stablehlo.dot_general %647, %633, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
      %649 = stablehlo.transpose %648, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
      %650 = stablehlo.dot_general %647, %634, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<8x16xf32>) -> tensor<2x4x8xf32>
      %651 = stablehlo.transpose %649, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
      %652 = stablehlo.multiply %620, %650 : tensor<2x4x8xf32>
      %cst_221 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %653 = stablehlo.reduce(%652 init: %cst_221) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %654 = stablehlo.reshape %653 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %655 = stablehlo.broadcast_in_dim %628, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %656 = stablehlo.multiply %650, %655 : tensor<2x4x8xf32>
      %657 = stablehlo.multiply %654, %631 : tensor<2x4x1xf32>
      %cst_222 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %658 = stablehlo.broadcast_in_dim %cst_222, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %659 = stablehlo.divide %657, %658 : tensor<2x4x1xf32>
      %cst_223 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %660 = stablehlo.reduce(%659 init: %cst_223) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %661 = stablehlo.broadcast_in_dim %660, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %662 = stablehlo.multiply %620, %661 : tensor<2x4x8xf32>
      %663 = stablehlo.add %656, %662 : tensor<2x4x8xf32>
      %664 = stablehlo.multiply %661, %620 : tensor<2x4x8xf32>
      %665 = stablehlo.add %663, %664 : tensor<2x4x8xf32>
      %666 = stablehlo.negate %665 : tensor<2x4x8xf32>
      %cst_224 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %667 = stablehlo.reduce(%666 init: %cst_224) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %668 = stablehlo.reshape %667 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %cst_225 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %669 = stablehlo.broadcast_in_dim %cst_225, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %670 = stablehlo.divide %668, %669 : tensor<2x4x1xf32>
      %cst_226 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %671 = stablehlo.reduce(%670 init: %cst_226) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %672 = stablehlo.broadcast_in_dim %671, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %673 = stablehlo.add %665, %672 : tensor<2x4x8xf32>
      %674 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}} %673 : tensor<2x4x8xf32>
      %675 = stablehlo.dot_general %674, %608, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x4x16xf32>) -> tensor<8x16xf32>
      %676 = stablehlo.transpose %675, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
      %677 = stablehlo.dot_general %674, %iterArg_141, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x4x16xf32>
      %cst_227 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %678 = stablehlo.broadcast_in_dim %cst_227, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %679 = stablehlo.select %610, %677, %678 : tensor<2x4x16xi1>, tensor<2x4x16xf32>
      %680 = stablehlo.dot_general %679, %606, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
      %681 = stablehlo.transpose %680, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
      %682 = stablehlo.dot_general %679, %iterArg_140, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<8x16xf32>) -> tensor<2x4x8xf32>
      %683 = stablehlo.multiply %593, %682 : tensor<2x4x8xf32>
      %cst_228 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %684 = stablehlo.reduce(%683 init: %cst_228) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %685 = stablehlo.reshape %684 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %686 = stablehlo.broadcast_in_dim %601, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %687 = stablehlo.multiply %682, %686 : tensor<2x4x8xf32>
      %688 = stablehlo.multiply %685, %604 : tensor<2x4x1xf32>
      %cst_229 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %689 = stablehlo.broadcast_in_dim %cst_229, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %690 = stablehlo.divide %688, %689 : tensor<2x4x1xf32>
      %cst_230 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %691 = stablehlo.reduce(%690 init: %cst_230) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %692 = stablehlo.broadcast_in_dim %691, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %693 = stablehlo.multiply %593, %692 : tensor<2x4x8xf32>
      %694 = stablehlo.add %687, %693 : tensor<2x4x8xf32>
      %695 = stablehlo.multiply %692, %593 : tensor<2x4x8xf32>
      %696 = stablehlo.add %694, %695 : tensor<2x4x8xf32>
      %697 = stablehlo.negate %696 : tensor<2x4x8xf32>
      %cst_231 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %698 = stablehlo.reduce(%697 init: %cst_231) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %699 = stablehlo.reshape %698 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %700 = stablehlo.add %674, %696 : tensor<2x4x8xf32>
      %cst_232 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %701 = stablehlo.broadcast_in_dim %cst_232, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %702 = stablehlo.divide %699, %701 : tensor<2x4x1xf32>
      %cst_233 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %703 = stablehlo.reduce(%702 init: %cst_233) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %704 = stablehlo.broadcast_in_dim %703, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %705 = stablehlo.add %700, %704 : tensor<2x4x8xf32>
      %706 = stablehlo.dot_general %705, %585, contracting_dims = [0, 1] x [0, 3], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x2x4x4xf32>) -> tensor<8x2x4xf32>
      %707 = stablehlo.transpose %706, dims = [1, 2, 0] : (tensor<8x2x4xf32>) -> tensor<2x4x8xf32>
      %708 = stablehlo.dot_general %705, %iterArg_139, contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x2x4xf32>
      %709 = stablehlo.transpose %708, dims = [0, 2, 3, 1] : (tensor<2x4x2x4xf32>) -> tensor<2x2x4x4xf32>
      %710 = stablehlo.dot_general %709, %549, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %711 = stablehlo.dot_general %709, %581, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %712 = stablehlo.transpose %711, dims = [0, 1, 3, 2] : (tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %713 = stablehlo.broadcast_in_dim %584, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %714 = stablehlo.multiply %710, %713 : tensor<2x2x4x4xf32>
      %715 = stablehlo.multiply %714, %577 : tensor<2x2x4x4xf32>
      %cst_234 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %716 = stablehlo.reduce(%715 init: %cst_234) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %717 = stablehlo.reshape %716 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %718 = stablehlo.negate %717 : tensor<2x2x4x1xf32>
      %719 = stablehlo.broadcast_in_dim %579, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %720 = stablehlo.divide %710, %719 : tensor<2x2x4x4xf32>
      %cst_235 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %721 = stablehlo.reduce(%718 init: %cst_235) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x1xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %722 = stablehlo.broadcast_in_dim %721, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x4xf32>
      %723 = stablehlo.add %720, %722 : tensor<2x2x4x4xf32>
      %724 = stablehlo.multiply %723, %577 : tensor<2x2x4x4xf32>
      %725 = func.call @_where_2(%555#1, %555#2, %724) : (tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %cst_236 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
      %726 = stablehlo.broadcast_in_dim %cst_236, dims = [] : (tensor<f32>) -> tensor<2x2x4x4xf32>
      %727 = stablehlo.multiply %725, %726 : tensor<2x2x4x4xf32>
      %728 = stablehlo.dot_general %727, %545, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %729 = stablehlo.dot_general %727, %547, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %730 = stablehlo.broadcast_in_dim %712, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_237 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %731 = stablehlo.pad %730, %cst_237, low = [2, 0, 0, 0, 0], high = [0, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %732 = stablehlo.broadcast_in_dim %728, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_238 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %733 = stablehlo.pad %732, %cst_238, low = [1, 0, 0, 0, 0], high = [1, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %734 = stablehlo.add %731, %733 : tensor<3x2x2x4x4xf32>
      %735 = stablehlo.broadcast_in_dim %729, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_239 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %736 = stablehlo.pad %735, %cst_239, low = [0, 0, 0, 0, 0], high = [2, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %737 = stablehlo.add %734, %736 : tensor<3x2x2x4x4xf32>
      %738 = stablehlo.transpose %737, dims = [0, 2, 4, 1, 3] : (tensor<3x2x2x4x4xf32>) -> tensor<3x2x4x2x4xf32>
      %739 = stablehlo.dot_general %738, %iterArg_138, contracting_dims = [0, 1, 2] x [1, 2, 3], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<8x3x2x4xf32>) -> tensor<2x4x8xf32>
      %740 = stablehlo.dot_general %738, %541, contracting_dims = [3, 4] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x8xf32>
      %741 = stablehlo.transpose %740, dims = [3, 0, 1, 2] : (tensor<3x2x4x8xf32>) -> tensor<8x3x2x4xf32>
      %742 = stablehlo.multiply %528, %739 : tensor<2x4x8xf32>
      %cst_240 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %743 = stablehlo.reduce(%742 init: %cst_240) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %744 = stablehlo.reshape %743 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %745 = stablehlo.broadcast_in_dim %536, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %746 = stablehlo.multiply %739, %745 : tensor<2x4x8xf32>
      %747 = stablehlo.multiply %744, %539 : tensor<2x4x1xf32>
      %cst_241 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %748 = stablehlo.broadcast_in_dim %cst_241, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %749 = stablehlo.divide %747, %748 : tensor<2x4x1xf32>
      %cst_242 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %750 = stablehlo.reduce(%749 init: %cst_242) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %751 = stablehlo.broadcast_in_dim %750, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %752 = stablehlo.multiply %528, %751 : tensor<2x4x8xf32>
      %753 = stablehlo.add %746, %752 : tensor<2x4x8xf32>
      %754 = stablehlo.multiply %751, %528 : tensor<2x4x8xf32>
      %755 = stablehlo.add %753, %754 : tensor<2x4x8xf32>
      %756 = stablehlo.negate %755 : tensor<2x4x8xf32>
      %cst_243 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %757 = stablehlo.reduce(%756 init: %cst_243) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %758 = stablehlo.reshape %757 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %759 = stablehlo.add %705, %755 : tensor<2x4x8xf32>
      %cst_244 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %760 = stablehlo.broadcast_in_dim %cst_244, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %761 = stablehlo.divide %758, %760 : tensor<2x4x1xf32>
      %cst_245 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %762 = stablehlo.reduce(%761 init: %cst_245) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %763 = stablehlo.broadcast_in_dim %762, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %764 = stablehlo.add %759, %763 : tensor<2x4x8xf32>
      %765 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}} %764 : tensor<2x4x8xf32>
      %766 = stablehlo.dot_general %765, %516, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x4x16xf32>) -> tensor<8x16xf32>
      %767 = stablehlo.transpose %766, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
      %768 = stablehlo.dot_general %765, %iterArg_137, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<16x8xf32>) -> tensor<2x4x16xf32>
      %cst_246 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %769 = stablehlo.broadcast_in_dim %cst_246, dims = [] : (tensor<f32>) -> tensor<2x4x16xf32>
      %770 = stablehlo.select %518, %768, %769 : tensor<2x4x16xi1>, tensor<2x4x16xf32>
      %771 = stablehlo.dot_general %770, %514, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
      %772 = stablehlo.transpose %771, dims = [1, 0] : (tensor<16x8xf32>) -> tensor<8x16xf32>
      %773 = stablehlo.dot_general %770, %iterArg_136, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<8x16xf32>) -> tensor<2x4x8xf32>
      %774 = stablehlo.multiply %501, %773 : tensor<2x4x8xf32>
      %cst_247 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %775 = stablehlo.reduce(%774 init: %cst_247) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %776 = stablehlo.reshape %775 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %777 = stablehlo.broadcast_in_dim %509, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %778 = stablehlo.multiply %773, %777 : tensor<2x4x8xf32>
      %779 = stablehlo.multiply %776, %512 : tensor<2x4x1xf32>
      %cst_248 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %780 = stablehlo.broadcast_in_dim %cst_248, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %781 = stablehlo.divide %779, %780 : tensor<2x4x1xf32>
      %cst_249 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %782 = stablehlo.reduce(%781 init: %cst_249) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %783 = stablehlo.broadcast_in_dim %782, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %784 = stablehlo.multiply %501, %783 : tensor<2x4x8xf32>
      %785 = stablehlo.add %778, %784 : tensor<2x4x8xf32>
      %786 = stablehlo.multiply %783, %501 : tensor<2x4x8xf32>
      %787 = stablehlo.add %785, %786 : tensor<2x4x8xf32>
      %788 = stablehlo.negate %787 : tensor<2x4x8xf32>
      %cst_250 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %789 = stablehlo.reduce(%788 init: %cst_250) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %790 = stablehlo.reshape %789 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %791 = stablehlo.add %765, %787 : tensor<2x4x8xf32>
      %cst_251 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %792 = stablehlo.broadcast_in_dim %cst_251, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %793 = stablehlo.divide %790, %792 : tensor<2x4x1xf32>
      %cst_252 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %794 = stablehlo.reduce(%793 init: %cst_252) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %795 = stablehlo.broadcast_in_dim %794, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %796 = stablehlo.add %791, %795 : tensor<2x4x8xf32>
      %797 = stablehlo.dot_general %796, %493, contracting_dims = [0, 1] x [0, 3], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x2x4x4xf32>) -> tensor<8x2x4xf32>
      %798 = stablehlo.transpose %797, dims = [1, 2, 0] : (tensor<8x2x4xf32>) -> tensor<2x4x8xf32>
      %799 = stablehlo.dot_general %796, %iterArg_135, contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x2x4xf32>
      %800 = stablehlo.transpose %799, dims = [0, 2, 3, 1] : (tensor<2x4x2x4xf32>) -> tensor<2x2x4x4xf32>
      %801 = stablehlo.dot_general %800, %457, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %802 = stablehlo.dot_general %800, %489, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %803 = stablehlo.transpose %802, dims = [0, 1, 3, 2] : (tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %804 = stablehlo.broadcast_in_dim %492, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %805 = stablehlo.multiply %801, %804 : tensor<2x2x4x4xf32>
      %806 = stablehlo.multiply %805, %485 : tensor<2x2x4x4xf32>
      %cst_253 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %807 = stablehlo.reduce(%806 init: %cst_253) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x4xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %808 = stablehlo.reshape %807 : (tensor<2x2x4xf32>) -> tensor<2x2x4x1xf32>
      %809 = stablehlo.negate %808 : tensor<2x2x4x1xf32>
      %810 = stablehlo.broadcast_in_dim %487, dims = [0, 1, 2, 3] : (tensor<2x2x4x1xf32>) -> tensor<2x2x4x4xf32>
      %811 = stablehlo.divide %801, %810 : tensor<2x2x4x4xf32>
      %cst_254 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %812 = stablehlo.reduce(%809 init: %cst_254) applies stablehlo.add across dimensions = [3] : (tensor<2x2x4x1xf32>, tensor<f32>) -> tensor<2x2x4xf32>
      %813 = stablehlo.broadcast_in_dim %812, dims = [0, 1, 2] : (tensor<2x2x4xf32>) -> tensor<2x2x4x4xf32>
      %814 = stablehlo.add %811, %813 : tensor<2x2x4x4xf32>
      %815 = stablehlo.multiply %814, %485 : tensor<2x2x4x4xf32>
      %816 = func.call @_where_2(%463#1, %463#2, %815) : (tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %cst_255 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
      %817 = stablehlo.broadcast_in_dim %cst_255, dims = [] : (tensor<f32>) -> tensor<2x2x4x4xf32>
      %818 = stablehlo.multiply %816, %817 : tensor<2x2x4x4xf32>
      %819 = stablehlo.dot_general %818, %453, batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %820 = stablehlo.dot_general %818, %455, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x2x4x4xf32>, tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32>
      %821 = stablehlo.broadcast_in_dim %803, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_256 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %822 = stablehlo.pad %821, %cst_256, low = [2, 0, 0, 0, 0], high = [0, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %823 = stablehlo.broadcast_in_dim %819, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_257 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %824 = stablehlo.pad %823, %cst_257, low = [1, 0, 0, 0, 0], high = [1, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %825 = stablehlo.add %822, %824 : tensor<3x2x2x4x4xf32>
      %826 = stablehlo.broadcast_in_dim %820, dims = [1, 2, 3, 4] : (tensor<2x2x4x4xf32>) -> tensor<1x2x2x4x4xf32>
      %cst_258 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %827 = stablehlo.pad %826, %cst_258, low = [0, 0, 0, 0, 0], high = [2, 0, 0, 0, 0], interior = [0, 0, 0, 0, 0] : (tensor<1x2x2x4x4xf32>, tensor<f32>) -> tensor<3x2x2x4x4xf32>
      %828 = stablehlo.add %825, %827 : tensor<3x2x2x4x4xf32>
      %829 = stablehlo.transpose %828, dims = [0, 2, 4, 1, 3] : (tensor<3x2x2x4x4xf32>) -> tensor<3x2x4x2x4xf32>
      %830 = stablehlo.dot_general %829, %iterArg_134, contracting_dims = [0, 1, 2] x [1, 2, 3], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<8x3x2x4xf32>) -> tensor<2x4x8xf32>
      %831 = stablehlo.dot_general %829, %449, contracting_dims = [3, 4] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<3x2x4x2x4xf32>, tensor<2x4x8xf32>) -> tensor<3x2x4x8xf32>
      %832 = stablehlo.transpose %831, dims = [3, 0, 1, 2] : (tensor<3x2x4x8xf32>) -> tensor<8x3x2x4xf32>
      %833 = stablehlo.multiply %436, %830 : tensor<2x4x8xf32>
      %cst_259 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %834 = stablehlo.reduce(%833 init: %cst_259) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %835 = stablehlo.reshape %834 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %836 = stablehlo.broadcast_in_dim %444, dims = [0, 1, 2] : (tensor<2x4x1xf32>) -> tensor<2x4x8xf32>
      %837 = stablehlo.multiply %830, %836 : tensor<2x4x8xf32>
      %838 = stablehlo.multiply %835, %447 : tensor<2x4x1xf32>
      %cst_260 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %839 = stablehlo.broadcast_in_dim %cst_260, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %840 = stablehlo.divide %838, %839 : tensor<2x4x1xf32>
      %cst_261 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %841 = stablehlo.reduce(%840 init: %cst_261) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %842 = stablehlo.broadcast_in_dim %841, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %843 = stablehlo.multiply %436, %842 : tensor<2x4x8xf32>
      %844 = stablehlo.add %837, %843 : tensor<2x4x8xf32>
      %845 = stablehlo.multiply %842, %436 : tensor<2x4x8xf32>
      %846 = stablehlo.add %844, %845 : tensor<2x4x8xf32>
      %847 = stablehlo.negate %846 : tensor<2x4x8xf32>
      %cst_262 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %848 = stablehlo.reduce(%847 init: %cst_262) applies stablehlo.add across dimensions = [2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<2x4xf32>
      %849 = stablehlo.reshape %848 : (tensor<2x4xf32>) -> tensor<2x4x1xf32>
      %850 = stablehlo.add %796, %846 : tensor<2x4x8xf32>
      %cst_263 = stablehlo.constant dense<8.000000e+00> : tensor<f32>
      %851 = stablehlo.broadcast_in_dim %cst_263, dims = [] : (tensor<f32>) -> tensor<2x4x1xf32>
      %852 = stablehlo.divide %849, %851 : tensor<2x4x1xf32>
      %cst_264 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %853 = stablehlo.reduce(%852 init: %cst_264) applies stablehlo.add across dimensions = [2] : (tensor<2x4x1xf32>, tensor<f32>) -> tensor<2x4xf32>
      %854 = stablehlo.broadcast_in_dim %853, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x8xf32>
      %855 = stablehlo.add %850, %854 : tensor<2x4x8xf32>
      %cst_265 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %856 = stablehlo.reduce(%855 init: %cst_265) applies stablehlo.add across dimensions = [0] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
      %857 = stablehlo.reshape %856 : (tensor<4x8xf32>) -> tensor<1x4x8xf32>
      %cst_266 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %858 = stablehlo.reduce(%857 init: %cst_266) applies stablehlo.add across dimensions = [0] : (tensor<1x4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
      %cst_267 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %859 = stablehlo.broadcast_in_dim %cst_267, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
      %860 = "stablehlo.scatter"(%859, %426, %855) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
      ^bb0(%arg33: tensor<f32>, %arg34: tensor<f32>):
        %873 = stablehlo.add %arg33, %arg34 : tensor<f32>
        stablehlo.return %873 : tensor<f32>
      }) : (tensor<16x8xf32>, tensor<2x4x1xi32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
      %861 = stablehlo.add %651, %860 : tensor<16x8xf32>
      %862 = func.call @dynamic_update_index_in_dim(%iterArg_143, %642, %iterArg_142) : (tensor<4xf32>, tensor<f32>, tensor<i32>) -> tensor<4xf32>
      %863 = stablehlo.add %iterArg_144, %767 : tensor<16x8xf32>
      %864 = stablehlo.add %iterArg_145, %798 : tensor<2x4x8xf32>
      %865 = stablehlo.add %iterArg_146, %832 : tensor<8x3x2x4xf32>
      %866 = stablehlo.add %iterArg_147, %772 : tensor<8x16xf32>
      %867 = stablehlo.add %iterArg_148, %676 : tensor<16x8xf32>
      %868 = stablehlo.add %iterArg_149, %707 : tensor<2x4x8xf32>
      %869 = stablehlo.add %iterArg_150, %741 : tensor<8x3x2x4xf32>
      %870 = stablehlo.add %iterArg_151, %681 : tensor<8x16xf32>
      %871 = stablehlo.add %iterArg_152, %861 : tensor<16x8xf32>
      %872 = stablehlo.add %iterArg_153, %858 : tensor<4x8xf32>
      stablehlo.return %iterArg, %iterArg_132, %iterArg_133, %iterArg_134, %iterArg_135, %iterArg_136, %iterArg_137, %iterArg_138, %iterArg_139, %iterArg_140, %iterArg_141, %418, %862, %863, %864, %865, %866, %867, %868, %869, %870, %871, %872 : tensor<4x2x5xi32>, tensor<16x8xf32>, tensor<4x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<8x3x2x4xf32>, tensor<2x4x8xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<i32>, tensor<4xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<4x8xf32>
    }
    %12 = chlo.square %11#13 : tensor<16x8xf32> -> tensor<16x8xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %14 = chlo.square %13 : tensor<16x8xf32> -> tensor<16x8xf32>
    %15 = stablehlo.add %12, %14 : tensor<16x8xf32>
    %16 = chlo.square %11#14 : tensor<2x4x8xf32> -> tensor<2x4x8xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %17 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %18 = chlo.square %17 : tensor<2x4x8xf32> -> tensor<2x4x8xf32>
    %19 = stablehlo.add %16, %18 : tensor<2x4x8xf32>
    %20 = chlo.square %11#15 : tensor<8x3x2x4xf32> -> tensor<8x3x2x4xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %22 = chlo.square %21 : tensor<8x3x2x4xf32> -> tensor<8x3x2x4xf32>
    %23 = stablehlo.add %20, %22 : tensor<8x3x2x4xf32>
    %24 = chlo.square %11#16 : tensor<8x16xf32> -> tensor<8x16xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %25 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %26 = chlo.square %25 : tensor<8x16xf32> -> tensor<8x16xf32>
    %27 = stablehlo.add %24, %26 : tensor<8x16xf32>
    %28 = chlo.square %11#17 : tensor<16x8xf32> -> tensor<16x8xf32>
    %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %30 = chlo.square %29 : tensor<16x8xf32> -> tensor<16x8xf32>
    %31 = stablehlo.add %28, %30 : tensor<16x8xf32>
    %32 = chlo.square %11#18 : tensor<2x4x8xf32> -> tensor<2x4x8xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %33 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %34 = chlo.square %33 : tensor<2x4x8xf32> -> tensor<2x4x8xf32>
    %35 = stablehlo.add %32, %34 : tensor<2x4x8xf32>
    %36 = chlo.square %11#19 : tensor<8x3x2x4xf32> -> tensor<8x3x2x4xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %37 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %38 = chlo.square %37 : tensor<8x3x2x4xf32> -> tensor<8x3x2x4xf32>
    %39 = stablehlo.add %36, %38 : tensor<8x3x2x4xf32>
    %40 = chlo.square %11#20 : tensor<8x16xf32> -> tensor<8x16xf32>
    %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %41 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %42 = chlo.square %41 : tensor<8x16xf32> -> tensor<8x16xf32>
    %43 = stablehlo.add %40, %42 : tensor<8x16xf32>
    %44 = chlo.square %11#21 : tensor<16x8xf32> -> tensor<16x8xf32>
    %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %45 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %46 = chlo.square %45 : tensor<16x8xf32> -> tensor<16x8xf32>
    %47 = stablehlo.add %44, %46 : tensor<16x8xf32>
    %48 = chlo.square %11#22 : tensor<4x8xf32> -> tensor<4x8xf32>
    %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %49 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %50 = chlo.square %49 : tensor<4x8xf32> -> tensor<4x8xf32>
    %51 = stablehlo.add %48, %50 : tensor<4x8xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %52 = stablehlo.reduce(%15 init: %cst_20) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %53 = stablehlo.reduce(%19 init: %cst_21) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_22 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %54 = stablehlo.reduce(%23 init: %cst_22) applies stablehlo.add across dimensions = [0, 1, 2, 3] : (tensor<8x3x2x4xf32>, tensor<f32>) -> tensor<f32>
    %cst_23 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %55 = stablehlo.reduce(%27 init: %cst_23) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<f32>
    %cst_24 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %56 = stablehlo.reduce(%31 init: %cst_24) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_25 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %57 = stablehlo.reduce(%35 init: %cst_25) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x4x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_26 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %58 = stablehlo.reduce(%39 init: %cst_26) applies stablehlo.add across dimensions = [0, 1, 2, 3] : (tensor<8x3x2x4xf32>, tensor<f32>) -> tensor<f32>
    %cst_27 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %59 = stablehlo.reduce(%43 init: %cst_27) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<f32>
    %cst_28 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %60 = stablehlo.reduce(%47 init: %cst_28) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_29 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %61 = stablehlo.reduce(%51 init: %cst_29) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_30 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %62 = stablehlo.add %cst_30, %52 : tensor<f32>
    %63 = stablehlo.add %62, %53 : tensor<f32>
    %64 = stablehlo.add %63, %54 : tensor<f32>
    %65 = stablehlo.add %64, %55 : tensor<f32>
    %66 = stablehlo.add %65, %56 : tensor<f32>
    %67 = stablehlo.add %66, %57 : tensor<f32>
    %68 = stablehlo.add %67, %58 : tensor<f32>
    %69 = stablehlo.add %68, %59 : tensor<f32>
    %70 = stablehlo.add %69, %60 : tensor<f32>
    %71 = stablehlo.add %70, %61 : tensor<f32>
    %72 = stablehlo.sqrt %71 : tensor<f32>
    %cst_31 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %73 = stablehlo.compare LT, %72, %cst_31, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %74 = stablehlo.broadcast_in_dim %72, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %75 = stablehlo.divide %11#13, %74 : tensor<16x8xf32>
    %cst_32 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %76 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %77 = stablehlo.multiply %75, %76 : tensor<16x8xf32>
    %78 = stablehlo.select %73, %11#13, %77 : tensor<i1>, tensor<16x8xf32>
    %79 = stablehlo.broadcast_in_dim %72, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %80 = stablehlo.divide %11#14, %79 : tensor<2x4x8xf32>
    %cst_33 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %81 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %82 = stablehlo.multiply %80, %81 : tensor<2x4x8xf32>
    %83 = stablehlo.select %73, %11#14, %82 : tensor<i1>, tensor<2x4x8xf32>
    %84 = stablehlo.broadcast_in_dim %72, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %85 = stablehlo.divide %11#15, %84 : tensor<8x3x2x4xf32>
    %cst_34 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %86 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %87 = stablehlo.multiply %85, %86 : tensor<8x3x2x4xf32>
    %88 = stablehlo.select %73, %11#15, %87 : tensor<i1>, tensor<8x3x2x4xf32>
    %89 = stablehlo.broadcast_in_dim %72, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %90 = stablehlo.divide %11#16, %89 : tensor<8x16xf32>
    %cst_35 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %91 = stablehlo.broadcast_in_dim %cst_35, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %92 = stablehlo.multiply %90, %91 : tensor<8x16xf32>
    %93 = stablehlo.select %73, %11#16, %92 : tensor<i1>, tensor<8x16xf32>
    %94 = stablehlo.broadcast_in_dim %72, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %95 = stablehlo.divide %11#17, %94 : tensor<16x8xf32>
    %cst_36 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %96 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %97 = stablehlo.multiply %95, %96 : tensor<16x8xf32>
    %98 = stablehlo.select %73, %11#17, %97 : tensor<i1>, tensor<16x8xf32>
    %99 = stablehlo.broadcast_in_dim %72, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %100 = stablehlo.divide %11#18, %99 : tensor<2x4x8xf32>
    %cst_37 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %101 = stablehlo.broadcast_in_dim %cst_37, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %102 = stablehlo.multiply %100, %101 : tensor<2x4x8xf32>
    %103 = stablehlo.select %73, %11#18, %102 : tensor<i1>, tensor<2x4x8xf32>
    %104 = stablehlo.broadcast_in_dim %72, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %105 = stablehlo.divide %11#19, %104 : tensor<8x3x2x4xf32>
    %cst_38 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %106 = stablehlo.broadcast_in_dim %cst_38, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %107 = stablehlo.multiply %105, %106 : tensor<8x3x2x4xf32>
    %108 = stablehlo.select %73, %11#19, %107 : tensor<i1>, tensor<8x3x2x4xf32>
    %109 = stablehlo.broadcast_in_dim %72, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %110 = stablehlo.divide %11#20, %109 : tensor<8x16xf32>
    %cst_39 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %111 = stablehlo.broadcast_in_dim %cst_39, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %112 = stablehlo.multiply %110, %111 : tensor<8x16xf32>
    %113 = stablehlo.select %73, %11#20, %112 : tensor<i1>, tensor<8x16xf32>
    %114 = stablehlo.broadcast_in_dim %72, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %115 = stablehlo.divide %11#21, %114 : tensor<16x8xf32>
    %cst_40 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %116 = stablehlo.broadcast_in_dim %cst_40, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %117 = stablehlo.multiply %115, %116 : tensor<16x8xf32>
    %118 = stablehlo.select %73, %11#21, %117 : tensor<i1>, tensor<16x8xf32>
    %119 = stablehlo.broadcast_in_dim %72, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %120 = stablehlo.divide %11#22, %119 : tensor<4x8xf32>
    %cst_41 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %121 = stablehlo.broadcast_in_dim %cst_41, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %122 = stablehlo.multiply %120, %121 : tensor<4x8xf32>
    %123 = stablehlo.select %73, %11#22, %122 : tensor<i1>, tensor<4x8xf32>
    %cst_42 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %124 = stablehlo.broadcast_in_dim %cst_42, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %125 = stablehlo.multiply %124, %78 : tensor<16x8xf32>
    %cst_43 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %126 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %127 = stablehlo.multiply %126, %arg11 : tensor<16x8xf32>
    %128 = stablehlo.add %125, %127 : tensor<16x8xf32>
    %cst_44 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %129 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %130 = stablehlo.multiply %129, %83 : tensor<2x4x8xf32>
    %cst_45 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %131 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %132 = stablehlo.multiply %131, %arg12 : tensor<2x4x8xf32>
    %133 = stablehlo.add %130, %132 : tensor<2x4x8xf32>
    %cst_46 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %134 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %135 = stablehlo.multiply %134, %88 : tensor<8x3x2x4xf32>
    %cst_47 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %136 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %137 = stablehlo.multiply %136, %arg13 : tensor<8x3x2x4xf32>
    %138 = stablehlo.add %135, %137 : tensor<8x3x2x4xf32>
    %cst_48 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %139 = stablehlo.broadcast_in_dim %cst_48, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %140 = stablehlo.multiply %139, %93 : tensor<8x16xf32>
    %cst_49 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %141 = stablehlo.broadcast_in_dim %cst_49, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %142 = stablehlo.multiply %141, %arg14 : tensor<8x16xf32>
    %143 = stablehlo.add %140, %142 : tensor<8x16xf32>
    %cst_50 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %144 = stablehlo.broadcast_in_dim %cst_50, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %145 = stablehlo.multiply %144, %98 : tensor<16x8xf32>
    %cst_51 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %146 = stablehlo.broadcast_in_dim %cst_51, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %147 = stablehlo.multiply %146, %arg15 : tensor<16x8xf32>
    %148 = stablehlo.add %145, %147 : tensor<16x8xf32>
    %cst_52 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %149 = stablehlo.broadcast_in_dim %cst_52, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %150 = stablehlo.multiply %149, %103 : tensor<2x4x8xf32>
    %cst_53 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %151 = stablehlo.broadcast_in_dim %cst_53, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %152 = stablehlo.multiply %151, %arg16 : tensor<2x4x8xf32>
    %153 = stablehlo.add %150, %152 : tensor<2x4x8xf32>
    %cst_54 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %154 = stablehlo.broadcast_in_dim %cst_54, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %155 = stablehlo.multiply %154, %108 : tensor<8x3x2x4xf32>
    %cst_55 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %156 = stablehlo.broadcast_in_dim %cst_55, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %157 = stablehlo.multiply %156, %arg17 : tensor<8x3x2x4xf32>
    %158 = stablehlo.add %155, %157 : tensor<8x3x2x4xf32>
    %cst_56 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %159 = stablehlo.broadcast_in_dim %cst_56, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %160 = stablehlo.multiply %159, %113 : tensor<8x16xf32>
    %cst_57 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %161 = stablehlo.broadcast_in_dim %cst_57, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %162 = stablehlo.multiply %161, %arg18 : tensor<8x16xf32>
    %163 = stablehlo.add %160, %162 : tensor<8x16xf32>
    %cst_58 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %164 = stablehlo.broadcast_in_dim %cst_58, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %165 = stablehlo.multiply %164, %118 : tensor<16x8xf32>
    %cst_59 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %166 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %167 = stablehlo.multiply %166, %arg19 : tensor<16x8xf32>
    %168 = stablehlo.add %165, %167 : tensor<16x8xf32>
    %cst_60 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %169 = stablehlo.broadcast_in_dim %cst_60, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %170 = stablehlo.multiply %169, %123 : tensor<4x8xf32>
    %cst_61 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %171 = stablehlo.broadcast_in_dim %cst_61, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %172 = stablehlo.multiply %171, %arg20 : tensor<4x8xf32>
    %173 = stablehlo.add %170, %172 : tensor<4x8xf32>
    %174 = stablehlo.multiply %78, %78 : tensor<16x8xf32>
    %cst_62 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %175 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %176 = stablehlo.multiply %175, %174 : tensor<16x8xf32>
    %cst_63 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %177 = stablehlo.broadcast_in_dim %cst_63, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %178 = stablehlo.multiply %177, %arg21 : tensor<16x8xf32>
    %179 = stablehlo.add %176, %178 : tensor<16x8xf32>
    %180 = stablehlo.multiply %83, %83 : tensor<2x4x8xf32>
    %cst_64 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %181 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %182 = stablehlo.multiply %181, %180 : tensor<2x4x8xf32>
    %cst_65 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %183 = stablehlo.broadcast_in_dim %cst_65, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %184 = stablehlo.multiply %183, %arg22 : tensor<2x4x8xf32>
    %185 = stablehlo.add %182, %184 : tensor<2x4x8xf32>
    %186 = stablehlo.multiply %88, %88 : tensor<8x3x2x4xf32>
    %cst_66 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %187 = stablehlo.broadcast_in_dim %cst_66, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %188 = stablehlo.multiply %187, %186 : tensor<8x3x2x4xf32>
    %cst_67 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %189 = stablehlo.broadcast_in_dim %cst_67, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %190 = stablehlo.multiply %189, %arg23 : tensor<8x3x2x4xf32>
    %191 = stablehlo.add %188, %190 : tensor<8x3x2x4xf32>
    %192 = stablehlo.multiply %93, %93 : tensor<8x16xf32>
    %cst_68 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %193 = stablehlo.broadcast_in_dim %cst_68, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %194 = stablehlo.multiply %193, %192 : tensor<8x16xf32>
    %cst_69 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %195 = stablehlo.broadcast_in_dim %cst_69, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %196 = stablehlo.multiply %195, %arg24 : tensor<8x16xf32>
    %197 = stablehlo.add %194, %196 : tensor<8x16xf32>
    %198 = stablehlo.multiply %98, %98 : tensor<16x8xf32>
    %cst_70 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %199 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %200 = stablehlo.multiply %199, %198 : tensor<16x8xf32>
    %cst_71 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %201 = stablehlo.broadcast_in_dim %cst_71, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %202 = stablehlo.multiply %201, %arg25 : tensor<16x8xf32>
    %203 = stablehlo.add %200, %202 : tensor<16x8xf32>
    %204 = stablehlo.multiply %103, %103 : tensor<2x4x8xf32>
    %cst_72 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %205 = stablehlo.broadcast_in_dim %cst_72, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %206 = stablehlo.multiply %205, %204 : tensor<2x4x8xf32>
    %cst_73 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %207 = stablehlo.broadcast_in_dim %cst_73, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %208 = stablehlo.multiply %207, %arg26 : tensor<2x4x8xf32>
    %209 = stablehlo.add %206, %208 : tensor<2x4x8xf32>
    %210 = stablehlo.multiply %108, %108 : tensor<8x3x2x4xf32>
    %cst_74 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %211 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %212 = stablehlo.multiply %211, %210 : tensor<8x3x2x4xf32>
    %cst_75 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %213 = stablehlo.broadcast_in_dim %cst_75, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %214 = stablehlo.multiply %213, %arg27 : tensor<8x3x2x4xf32>
    %215 = stablehlo.add %212, %214 : tensor<8x3x2x4xf32>
    %216 = stablehlo.multiply %113, %113 : tensor<8x16xf32>
    %cst_76 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %217 = stablehlo.broadcast_in_dim %cst_76, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %218 = stablehlo.multiply %217, %216 : tensor<8x16xf32>
    %cst_77 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %219 = stablehlo.broadcast_in_dim %cst_77, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %220 = stablehlo.multiply %219, %arg28 : tensor<8x16xf32>
    %221 = stablehlo.add %218, %220 : tensor<8x16xf32>
    %222 = stablehlo.multiply %118, %118 : tensor<16x8xf32>
    %cst_78 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %223 = stablehlo.broadcast_in_dim %cst_78, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %224 = stablehlo.multiply %223, %222 : tensor<16x8xf32>
    %cst_79 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %225 = stablehlo.broadcast_in_dim %cst_79, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %226 = stablehlo.multiply %225, %arg29 : tensor<16x8xf32>
    %227 = stablehlo.add %224, %226 : tensor<16x8xf32>
    %228 = stablehlo.multiply %123, %123 : tensor<4x8xf32>
    %cst_80 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %229 = stablehlo.broadcast_in_dim %cst_80, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %230 = stablehlo.multiply %229, %228 : tensor<4x8xf32>
    %cst_81 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %231 = stablehlo.broadcast_in_dim %cst_81, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %232 = stablehlo.multiply %231, %arg30 : tensor<4x8xf32>
    %233 = stablehlo.add %230, %232 : tensor<4x8xf32>
    %c_82 = stablehlo.constant dense<2147483647> : tensor<i32>
    %234 = stablehlo.compare LT, %arg10, %c_82, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_83 = stablehlo.constant dense<1> : tensor<i32>
    %235 = stablehlo.add %arg10, %c_83 : tensor<i32>
    %c_84 = stablehlo.constant dense<2147483647> : tensor<i32>
    %236 = call @_where_3(%234, %235, %c_84) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %237 = stablehlo.convert %236 : (tensor<i32>) -> tensor<f32>
    %cst_85 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %238 = stablehlo.convert %236 : (tensor<i32>) -> tensor<f32>
    %239 = stablehlo.power %cst_85, %238 : tensor<f32>
    %cst_86 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %240 = stablehlo.subtract %cst_86, %239 : tensor<f32>
    %241 = stablehlo.broadcast_in_dim %240, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %242 = stablehlo.divide %128, %241 : tensor<16x8xf32>
    %243 = stablehlo.broadcast_in_dim %240, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %244 = stablehlo.divide %133, %243 : tensor<2x4x8xf32>
    %245 = stablehlo.broadcast_in_dim %240, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %246 = stablehlo.divide %138, %245 : tensor<8x3x2x4xf32>
    %247 = stablehlo.broadcast_in_dim %240, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %248 = stablehlo.divide %143, %247 : tensor<8x16xf32>
    %249 = stablehlo.broadcast_in_dim %240, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %250 = stablehlo.divide %148, %249 : tensor<16x8xf32>
    %251 = stablehlo.broadcast_in_dim %240, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %252 = stablehlo.divide %153, %251 : tensor<2x4x8xf32>
    %253 = stablehlo.broadcast_in_dim %240, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %254 = stablehlo.divide %158, %253 : tensor<8x3x2x4xf32>
    %255 = stablehlo.broadcast_in_dim %240, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %256 = stablehlo.divide %163, %255 : tensor<8x16xf32>
    %257 = stablehlo.broadcast_in_dim %240, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %258 = stablehlo.divide %168, %257 : tensor<16x8xf32>
    %259 = stablehlo.broadcast_in_dim %240, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %260 = stablehlo.divide %173, %259 : tensor<4x8xf32>
    %261 = stablehlo.convert %236 : (tensor<i32>) -> tensor<f32>
    %cst_87 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %262 = stablehlo.convert %236 : (tensor<i32>) -> tensor<f32>
    %263 = stablehlo.power %cst_87, %262 : tensor<f32>
    %cst_88 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %264 = stablehlo.subtract %cst_88, %263 : tensor<f32>
    %265 = stablehlo.broadcast_in_dim %264, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %266 = stablehlo.divide %179, %265 : tensor<16x8xf32>
    %267 = stablehlo.broadcast_in_dim %264, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %268 = stablehlo.divide %185, %267 : tensor<2x4x8xf32>
    %269 = stablehlo.broadcast_in_dim %264, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %270 = stablehlo.divide %191, %269 : tensor<8x3x2x4xf32>
    %271 = stablehlo.broadcast_in_dim %264, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %272 = stablehlo.divide %197, %271 : tensor<8x16xf32>
    %273 = stablehlo.broadcast_in_dim %264, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %274 = stablehlo.divide %203, %273 : tensor<16x8xf32>
    %275 = stablehlo.broadcast_in_dim %264, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %276 = stablehlo.divide %209, %275 : tensor<2x4x8xf32>
    %277 = stablehlo.broadcast_in_dim %264, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %278 = stablehlo.divide %215, %277 : tensor<8x3x2x4xf32>
    %279 = stablehlo.broadcast_in_dim %264, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %280 = stablehlo.divide %221, %279 : tensor<8x16xf32>
    %281 = stablehlo.broadcast_in_dim %264, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %282 = stablehlo.divide %227, %281 : tensor<16x8xf32>
    %283 = stablehlo.broadcast_in_dim %264, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %284 = stablehlo.divide %233, %283 : tensor<4x8xf32>
    %cst_89 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %285 = stablehlo.broadcast_in_dim %cst_89, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %286 = stablehlo.add %266, %285 : tensor<16x8xf32>
    %287 = stablehlo.sqrt %286 : tensor<16x8xf32>
    %cst_90 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %288 = stablehlo.broadcast_in_dim %cst_90, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %289 = stablehlo.add %287, %288 : tensor<16x8xf32>
    %290 = stablehlo.divide %242, %289 : tensor<16x8xf32>
    %cst_91 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %291 = stablehlo.broadcast_in_dim %cst_91, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %292 = stablehlo.add %268, %291 : tensor<2x4x8xf32>
    %293 = stablehlo.sqrt %292 : tensor<2x4x8xf32>
    %cst_92 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %294 = stablehlo.broadcast_in_dim %cst_92, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %295 = stablehlo.add %293, %294 : tensor<2x4x8xf32>
    %296 = stablehlo.divide %244, %295 : tensor<2x4x8xf32>
    %cst_93 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %297 = stablehlo.broadcast_in_dim %cst_93, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %298 = stablehlo.add %270, %297 : tensor<8x3x2x4xf32>
    %299 = stablehlo.sqrt %298 : tensor<8x3x2x4xf32>
    %cst_94 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %300 = stablehlo.broadcast_in_dim %cst_94, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %301 = stablehlo.add %299, %300 : tensor<8x3x2x4xf32>
    %302 = stablehlo.divide %246, %301 : tensor<8x3x2x4xf32>
    %cst_95 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %303 = stablehlo.broadcast_in_dim %cst_95, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %304 = stablehlo.add %272, %303 : tensor<8x16xf32>
    %305 = stablehlo.sqrt %304 : tensor<8x16xf32>
    %cst_96 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %306 = stablehlo.broadcast_in_dim %cst_96, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %307 = stablehlo.add %305, %306 : tensor<8x16xf32>
    %308 = stablehlo.divide %248, %307 : tensor<8x16xf32>
    %cst_97 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %309 = stablehlo.broadcast_in_dim %cst_97, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %310 = stablehlo.add %274, %309 : tensor<16x8xf32>
    %311 = stablehlo.sqrt %310 : tensor<16x8xf32>
    %cst_98 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %312 = stablehlo.broadcast_in_dim %cst_98, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %313 = stablehlo.add %311, %312 : tensor<16x8xf32>
    %314 = stablehlo.divide %250, %313 : tensor<16x8xf32>
    %cst_99 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %315 = stablehlo.broadcast_in_dim %cst_99, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %316 = stablehlo.add %276, %315 : tensor<2x4x8xf32>
    %317 = stablehlo.sqrt %316 : tensor<2x4x8xf32>
    %cst_100 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %318 = stablehlo.broadcast_in_dim %cst_100, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %319 = stablehlo.add %317, %318 : tensor<2x4x8xf32>
    %320 = stablehlo.divide %252, %319 : tensor<2x4x8xf32>
    %cst_101 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %321 = stablehlo.broadcast_in_dim %cst_101, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %322 = stablehlo.add %278, %321 : tensor<8x3x2x4xf32>
    %323 = stablehlo.sqrt %322 : tensor<8x3x2x4xf32>
    %cst_102 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %324 = stablehlo.broadcast_in_dim %cst_102, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %325 = stablehlo.add %323, %324 : tensor<8x3x2x4xf32>
    %326 = stablehlo.divide %254, %325 : tensor<8x3x2x4xf32>
    %cst_103 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %327 = stablehlo.broadcast_in_dim %cst_103, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %328 = stablehlo.add %280, %327 : tensor<8x16xf32>
    %329 = stablehlo.sqrt %328 : tensor<8x16xf32>
    %cst_104 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %330 = stablehlo.broadcast_in_dim %cst_104, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %331 = stablehlo.add %329, %330 : tensor<8x16xf32>
    %332 = stablehlo.divide %256, %331 : tensor<8x16xf32>
    %cst_105 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %333 = stablehlo.broadcast_in_dim %cst_105, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %334 = stablehlo.add %282, %333 : tensor<16x8xf32>
    %335 = stablehlo.sqrt %334 : tensor<16x8xf32>
    %cst_106 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %336 = stablehlo.broadcast_in_dim %cst_106, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %337 = stablehlo.add %335, %336 : tensor<16x8xf32>
    %338 = stablehlo.divide %258, %337 : tensor<16x8xf32>
    %cst_107 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %339 = stablehlo.broadcast_in_dim %cst_107, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %340 = stablehlo.add %284, %339 : tensor<4x8xf32>
    %341 = stablehlo.sqrt %340 : tensor<4x8xf32>
    %cst_108 = stablehlo.constant dense<9.99999993E-9> : tensor<f32>
    %342 = stablehlo.broadcast_in_dim %cst_108, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %343 = stablehlo.add %341, %342 : tensor<4x8xf32>
    %344 = stablehlo.divide %260, %343 : tensor<4x8xf32>
    %cst_109 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %345 = stablehlo.broadcast_in_dim %cst_109, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %346 = stablehlo.multiply %345, %arg0 : tensor<16x8xf32>
    %347 = stablehlo.add %290, %346 : tensor<16x8xf32>
    %cst_110 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %348 = stablehlo.broadcast_in_dim %cst_110, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %349 = stablehlo.multiply %348, %arg1 : tensor<2x4x8xf32>
    %350 = stablehlo.add %296, %349 : tensor<2x4x8xf32>
    %cst_111 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %351 = stablehlo.broadcast_in_dim %cst_111, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %352 = stablehlo.multiply %351, %arg2 : tensor<8x3x2x4xf32>
    %353 = stablehlo.add %302, %352 : tensor<8x3x2x4xf32>
    %cst_112 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %354 = stablehlo.broadcast_in_dim %cst_112, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %355 = stablehlo.multiply %354, %arg3 : tensor<8x16xf32>
    %356 = stablehlo.add %308, %355 : tensor<8x16xf32>
    %cst_113 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %357 = stablehlo.broadcast_in_dim %cst_113, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %358 = stablehlo.multiply %357, %arg4 : tensor<16x8xf32>
    %359 = stablehlo.add %314, %358 : tensor<16x8xf32>
    %cst_114 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %360 = stablehlo.broadcast_in_dim %cst_114, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %361 = stablehlo.multiply %360, %arg5 : tensor<2x4x8xf32>
    %362 = stablehlo.add %320, %361 : tensor<2x4x8xf32>
    %cst_115 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %363 = stablehlo.broadcast_in_dim %cst_115, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %364 = stablehlo.multiply %363, %arg6 : tensor<8x3x2x4xf32>
    %365 = stablehlo.add %326, %364 : tensor<8x3x2x4xf32>
    %cst_116 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %366 = stablehlo.broadcast_in_dim %cst_116, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %367 = stablehlo.multiply %366, %arg7 : tensor<8x16xf32>
    %368 = stablehlo.add %332, %367 : tensor<8x16xf32>
    %cst_117 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %369 = stablehlo.broadcast_in_dim %cst_117, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %370 = stablehlo.multiply %369, %arg8 : tensor<16x8xf32>
    %371 = stablehlo.add %338, %370 : tensor<16x8xf32>
    %cst_118 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %372 = stablehlo.broadcast_in_dim %cst_118, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %373 = stablehlo.multiply %372, %arg9 : tensor<4x8xf32>
    %374 = stablehlo.add %344, %373 : tensor<4x8xf32>
    %c_119 = stablehlo.constant dense<0> : tensor<i32>
    %375 = stablehlo.subtract %arg31, %c_119 : tensor<i32>
    %c_120 = stablehlo.constant dense<0> : tensor<i32>
    %c_121 = stablehlo.constant dense<10> : tensor<i32>
    %376 = call @clip(%375, %c_120, %c_121) : (tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %377 = stablehlo.convert %376 : (tensor<i32>) -> tensor<f32>
    %cst_122 = stablehlo.constant dense<1.000000e+01> : tensor<f32>
    %378 = stablehlo.divide %377, %cst_122 : tensor<f32>
    %cst_123 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %379 = stablehlo.subtract %cst_123, %378 : tensor<f32>
    %cst_124 = stablehlo.constant dense<-1.000000e-03> : tensor<f32>
    %380 = stablehlo.multiply %cst_124, %379 : tensor<f32>
    %cst_125 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %381 = stablehlo.add %380, %cst_125 : tensor<f32>
    %cst_126 = stablehlo.constant dense<-1.000000e+00> : tensor<f32>
    %382 = stablehlo.multiply %cst_126, %381 : tensor<f32>
    %383 = stablehlo.broadcast_in_dim %382, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %384 = stablehlo.multiply %383, %347 : tensor<16x8xf32>
    %385 = stablehlo.broadcast_in_dim %382, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %386 = stablehlo.multiply %385, %350 : tensor<2x4x8xf32>
    %387 = stablehlo.broadcast_in_dim %382, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %388 = stablehlo.multiply %387, %353 : tensor<8x3x2x4xf32>
    %389 = stablehlo.broadcast_in_dim %382, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %390 = stablehlo.multiply %389, %356 : tensor<8x16xf32>
    %391 = stablehlo.broadcast_in_dim %382, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %392 = stablehlo.multiply %391, %359 : tensor<16x8xf32>
    %393 = stablehlo.broadcast_in_dim %382, dims = [] : (tensor<f32>) -> tensor<2x4x8xf32>
    %394 = stablehlo.multiply %393, %362 : tensor<2x4x8xf32>
    %395 = stablehlo.broadcast_in_dim %382, dims = [] : (tensor<f32>) -> tensor<8x3x2x4xf32>
    %396 = stablehlo.multiply %395, %365 : tensor<8x3x2x4xf32>
    %397 = stablehlo.broadcast_in_dim %382, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %398 = stablehlo.multiply %397, %368 : tensor<8x16xf32>
    %399 = stablehlo.broadcast_in_dim %382, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %400 = stablehlo.multiply %399, %371 : tensor<16x8xf32>
    %401 = stablehlo.broadcast_in_dim %382, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %402 = stablehlo.multiply %401, %374 : tensor<4x8xf32>
    %c_127 = stablehlo.constant dense<2147483647> : tensor<i32>
    %403 = stablehlo.compare LT, %arg31, %c_127, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_128 = stablehlo.constant dense<1> : tensor<i32>
    %404 = stablehlo.add %arg31, %c_128 : tensor<i32>
    %c_129 = stablehlo.constant dense<2147483647> : tensor<i32>
    %405 = call @_where_3(%403, %404, %c_129) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %406 = stablehlo.add %arg0, %384 : tensor<16x8xf32>
    %407 = stablehlo.add %arg1, %386 : tensor<2x4x8xf32>
    %408 = stablehlo.add %arg2, %388 : tensor<8x3x2x4xf32>
    %409 = stablehlo.add %arg3, %390 : tensor<8x16xf32>
    %410 = stablehlo.add %arg4, %392 : tensor<16x8xf32>
    %411 = stablehlo.add %arg5, %394 : tensor<2x4x8xf32>
    %412 = stablehlo.add %arg6, %396 : tensor<8x3x2x4xf32>
    %413 = stablehlo.add %arg7, %398 : tensor<8x16xf32>
    %414 = stablehlo.add %arg8, %400 : tensor<16x8xf32>
    %415 = stablehlo.add %arg9, %402 : tensor<4x8xf32>
    %cst_130 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %416 = stablehlo.reduce(%11#12 init: %cst_130) applies stablehlo.add across dimensions = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %cst_131 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %417 = stablehlo.divide %416, %cst_131 : tensor<f32>
    return %406, %407, %408, %409, %410, %411, %412, %413, %414, %415, %236, %128, %133, %138, %143, %148, %153, %158, %163, %168, %173, %179, %185, %191, %197, %203, %209, %215, %221, %227, %233, %405, %417 : tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<4x8xf32>, tensor<i32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<4x8xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<2x4x8xf32>, tensor<8x3x2x4xf32>, tensor<8x16xf32>, tensor<16x8xf32>, tensor<4x8xf32>, tensor<i32>, tensor<f32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<4x2x5xi32>, %arg1: tensor<i32>) -> tensor<2x5xi32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 2, 5] : (tensor<4x2x5xi32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x5xi32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x5xi32>) -> tensor<2x5xi32>
    return %1 : tensor<2x5xi32>
  }
  func.func private @tril(%arg0: tensor<4x4xi1>) -> tensor<4x4xi1> {
    %0 = stablehlo.iota dim = 0 : tensor<4x4xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x4xi32>
    %2 = stablehlo.add %0, %1 : tensor<4x4xi32>
    %3 = stablehlo.iota dim = 1 : tensor<4x4xi32>
    %4 = stablehlo.compare GE, %2, %3, SIGNED : (tensor<4x4xi32>, tensor<4x4xi32>) -> tensor<4x4xi1>
    %c_0 = stablehlo.constant dense<false> : tensor<i1>
    %5 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i1>) -> tensor<4x4xi1>
    %6 = stablehlo.select %4, %arg0, %5 : tensor<4x4xi1>, tensor<4x4xi1>
    return %6 : tensor<4x4xi1>
  }
  func.func private @_where(%arg0: tensor<4x4xi1>, %arg1: tensor<2x2x4x4xf32>, %arg2: tensor<f32>) -> (tensor<2x2x4x4xf32>, tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>) {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<4x4xi1>) -> tensor<2x2x4x4xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2x2x4x4xf32>
    %3 = stablehlo.select %1, %arg1, %2 : tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x4x4xf32>
    return %3, %1, %4 : tensor<2x2x4x4xf32>, tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>
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
  func.func private @_where_2(%arg0: tensor<2x2x4x4xi1>, %arg1: tensor<2x2x4x4xf32>, %arg2: tensor<2x2x4x4xf32>) -> tensor<2x2x4x4xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x2x4x4xf32>
    %1 = stablehlo.select %arg0, %arg2, %0 : tensor<2x2x4x4xi1>, tensor<2x2x4x4xf32>
    return %1 : tensor<2x2x4x4xf32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<4xf32>, %arg1: tensor<f32>, %arg2: tensor<i32>) -> tensor<4xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2 : (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @_where_3(%arg0: tensor<i1>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<i32>
    return %0 : tensor<i32>
  }
  func.func private @clip(%arg0: tensor<i32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.convert %arg1 : tensor<i32>
    %1 = stablehlo.maximum %0, %arg0 : tensor<i32>
    %2 = stablehlo.convert %arg2 : tensor<i32>
    %3 = stablehlo.minimum %2, %1 : tensor<i32>
    return %3 : tensor<i32>
  }
}
