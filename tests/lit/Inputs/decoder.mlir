// The lowered step of tests/unit/end_to_end/decoder.py: two stages, two microbatches of two slices, in seq1f1b.
module @jit_train_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=1, "model"=1]>
  func.func public @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>, %arg2: tensor<8x8xf32>, %arg3: tensor<8x8xf32>, %arg4: tensor<8x8xf32>, %arg5: tensor<8x8xf32>, %arg6: tensor<8x8xf32>, %arg7: tensor<8x8xf32>, %arg8: tensor<8x8xf32>, %arg9: tensor<8x8xf32>, %arg10: tensor<8x8xf32>, %arg11: tensor<8x8xf32>, %arg12: tensor<8x11xf32>, %arg13: tensor<11x8xf32>, %arg14: tensor<2x2x13xi32>) -> (tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][0]['down']", jaxpp.feeds = 0 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][0]['key']", jaxpp.feeds = 1 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][0]['out']", jaxpp.feeds = 2 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][0]['query']", jaxpp.feeds = 3 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][0]['up']", jaxpp.feeds = 4 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][0]['value']", jaxpp.feeds = 5 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][1]['down']", jaxpp.feeds = 6 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][1]['key']", jaxpp.feeds = 7 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][1]['out']", jaxpp.feeds = 8 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][1]['query']", jaxpp.feeds = 9 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][1]['up']", jaxpp.feeds = 10 : i64}, tensor<8x8xf32> {jax.result_info = "result[0]['blocks'][1]['value']", jaxpp.feeds = 11 : i64}, tensor<8x11xf32> {jax.result_info = "result[0]['head']", jaxpp.feeds = 12 : i64}, tensor<11x8xf32> {jax.result_info = "result[0]['tokens']", jaxpp.feeds = 13 : i64}, tensor<2xf32> {jax.result_info = "result[1]"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %9 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<8x11xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<11x8xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %15:31 = stablehlo.while(%iterArg = %arg14, %iterArg_28 = %arg13, %iterArg_29 = %arg3, %iterArg_30 = %arg1, %iterArg_31 = %arg5, %iterArg_32 = %arg2, %iterArg_33 = %arg4, %iterArg_34 = %arg0, %iterArg_35 = %arg9, %iterArg_36 = %arg7, %iterArg_37 = %arg11, %iterArg_38 = %arg8, %iterArg_39 = %arg10, %iterArg_40 = %arg6, %iterArg_41 = %arg12, %iterArg_42 = %c, %iterArg_43 = %0, %iterArg_44 = %1, %iterArg_45 = %2, %iterArg_46 = %3, %iterArg_47 = %4, %iterArg_48 = %5, %iterArg_49 = %6, %iterArg_50 = %7, %iterArg_51 = %8, %iterArg_52 = %9, %iterArg_53 = %10, %iterArg_54 = %11, %iterArg_55 = %12, %iterArg_56 = %13, %iterArg_57 = %14) : tensor<2x2x13xi32>, tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<i32>, tensor<2xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<11x8xf32> attributes {jaxpp.microbatch_loop = {length = 2 : i64, schedule = "schedule: seq1f1b\0Aplacement: 0 1\0Amesh 0: 0F0 0F0.1 0F1   .     0B0.1 0F1.1 0B0   .     0B1.1 0B1\0Amesh 1: .   1F0   1F0.1 1B0.1 1F1   1B0   1F1.1 1B1.1 1B1"}}
    cond {
      %c_58 = stablehlo.constant dense<2> : tensor<i32>
      %58 = stablehlo.compare LT, %iterArg_42, %c_58, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %58 : tensor<i1>
    } do {
      %c_58 = stablehlo.constant dense<1> : tensor<i32>
      %58 = stablehlo.add %iterArg_42, %c_58 : tensor<i32>
      %59 = func.call @dynamic_index_in_dim(%iterArg, %iterArg_42) : (tensor<2x2x13xi32>, tensor<i32>) -> tensor<2x13xi32>
      %60 = stablehlo.slice %59 [0:2, 0:12] : (tensor<2x13xi32>) -> tensor<2x12xi32>
      %61 = stablehlo.slice %59 [0:2, 1:13] : (tensor<2x13xi32>) -> tensor<2x12xi32>
      %cst_59 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %62 = stablehlo.broadcast_in_dim %cst_59, dims = [] : (tensor<f32>) -> tensor<2x12x8xf32>
      %63 = stablehlo.iota dim = 0 : tensor<2xi32>
      %64 = stablehlo.reshape %60 : (tensor<2x12xi32>) -> tensor<2x2x6xi32>
      %65 = stablehlo.transpose %64, dims = [1, 0, 2] : (tensor<2x2x6xi32>) -> tensor<2x2x6xi32>
      %66 = stablehlo.reshape %61 : (tensor<2x12xi32>) -> tensor<2x2x6xi32>
      %67 = stablehlo.transpose %66, dims = [1, 0, 2] : (tensor<2x2x6xi32>) -> tensor<2x2x6xi32>
      %68 = stablehlo.iota dim = 0 : tensor<12xi32>
      %69 = stablehlo.iota dim = 0 : tensor<6xi32>
      %70 = stablehlo.broadcast_in_dim %69, dims = [0] : (tensor<6xi32>) -> tensor<6x1xi32>
      %71 = stablehlo.broadcast_in_dim %68, dims = [1] : (tensor<12xi32>) -> tensor<1x12xi32>
      %cst_60 = stablehlo.constant dense<-1.000000e+30> : tensor<f32>
      %72:2 = func.call @_where(%cst_60) : (tensor<f32>) -> (tensor<2x6x12xf32>, tensor<2x6x12xf32>)
      %73 = stablehlo.iota dim = 0 : tensor<12xi32>
      %74 = stablehlo.iota dim = 0 : tensor<6xi32>
      %75 = stablehlo.broadcast_in_dim %74, dims = [0] : (tensor<6xi32>) -> tensor<6x1xi32>
      %76 = stablehlo.broadcast_in_dim %73, dims = [1] : (tensor<12xi32>) -> tensor<1x12xi32>
      %cst_61 = stablehlo.constant dense<-1.000000e+30> : tensor<f32>
      %77:2 = func.call @_where(%cst_61) : (tensor<f32>) -> (tensor<2x6x12xf32>, tensor<2x6x12xf32>)
      func.call @log_softmax() : () -> ()
      func.call @take_along_axis() : () -> ()
      %cst_62 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %78 = stablehlo.broadcast_in_dim %cst_62, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %c_63 = stablehlo.constant dense<0> : tensor<i32>
      %79 = stablehlo.broadcast_in_dim %c_63, dims = [] : (tensor<i32>) -> tensor<2x2x6x1xi32>
      %cst_64 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %80 = stablehlo.broadcast_in_dim %cst_64, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %c_65 = stablehlo.constant dense<0> : tensor<i32>
      %81 = stablehlo.broadcast_in_dim %c_65, dims = [] : (tensor<i32>) -> tensor<2xi32>
      %c_66 = stablehlo.constant dense<0> : tensor<i32>
      %82 = stablehlo.broadcast_in_dim %c_66, dims = [] : (tensor<i32>) -> tensor<2xi32>
      %cst_67 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %83 = stablehlo.broadcast_in_dim %cst_67, dims = [] : (tensor<f32>) -> tensor<2x2x12x8xf32>
      %cst_68 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %84 = stablehlo.broadcast_in_dim %cst_68, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %c_69 = stablehlo.constant dense<false> : tensor<i1>
      %85 = stablehlo.broadcast_in_dim %c_69, dims = [] : (tensor<i1>) -> tensor<2x2x6x12xi1>
      %cst_70 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %86 = stablehlo.broadcast_in_dim %cst_70, dims = [] : (tensor<f32>) -> tensor<2x2x6x12xf32>
      %cst_71 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %87 = stablehlo.broadcast_in_dim %cst_71, dims = [] : (tensor<f32>) -> tensor<2x2x6x1xf32>
      %cst_72 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %88 = stablehlo.broadcast_in_dim %cst_72, dims = [] : (tensor<f32>) -> tensor<2x2x6x1xf32>
      %cst_73 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %89 = stablehlo.broadcast_in_dim %cst_73, dims = [] : (tensor<f32>) -> tensor<2x2x12x8xf32>
      %cst_74 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %90 = stablehlo.broadcast_in_dim %cst_74, dims = [] : (tensor<f32>) -> tensor<2x2x6x12xf32>
      %cst_75 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %91 = stablehlo.broadcast_in_dim %cst_75, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %cst_76 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %92 = stablehlo.broadcast_in_dim %cst_76, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %cst_77 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %93 = stablehlo.broadcast_in_dim %cst_77, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %cst_78 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %94 = stablehlo.broadcast_in_dim %cst_78, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %cst_79 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %95 = stablehlo.broadcast_in_dim %cst_79, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %c_80 = stablehlo.constant dense<0> : tensor<i32>
      %96 = stablehlo.broadcast_in_dim %c_80, dims = [] : (tensor<i32>) -> tensor<2xi32>
      %c_81 = stablehlo.constant dense<0> : tensor<i32>
      %97 = stablehlo.broadcast_in_dim %c_81, dims = [] : (tensor<i32>) -> tensor<2xi32>
      %cst_82 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %98 = stablehlo.broadcast_in_dim %cst_82, dims = [] : (tensor<f32>) -> tensor<2x2x12x8xf32>
      %cst_83 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %99 = stablehlo.broadcast_in_dim %cst_83, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %c_84 = stablehlo.constant dense<false> : tensor<i1>
      %100 = stablehlo.broadcast_in_dim %c_84, dims = [] : (tensor<i1>) -> tensor<2x2x6x12xi1>
      %cst_85 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %101 = stablehlo.broadcast_in_dim %cst_85, dims = [] : (tensor<f32>) -> tensor<2x2x6x12xf32>
      %cst_86 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %102 = stablehlo.broadcast_in_dim %cst_86, dims = [] : (tensor<f32>) -> tensor<2x2x6x1xf32>
      %cst_87 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %103 = stablehlo.broadcast_in_dim %cst_87, dims = [] : (tensor<f32>) -> tensor<2x2x6x1xf32>
      %cst_88 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %104 = stablehlo.broadcast_in_dim %cst_88, dims = [] : (tensor<f32>) -> tensor<2x2x12x8xf32>
      %cst_89 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %105 = stablehlo.broadcast_in_dim %cst_89, dims = [] : (tensor<f32>) -> tensor<2x2x6x12xf32>
      %cst_90 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %106 = stablehlo.broadcast_in_dim %cst_90, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %cst_91 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %107 = stablehlo.broadcast_in_dim %cst_91, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %cst_92 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %108 = stablehlo.broadcast_in_dim %cst_92, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %cst_93 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %109 = stablehlo.broadcast_in_dim %cst_93, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %cst_94 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %110 = stablehlo.broadcast_in_dim %cst_94, dims = [] : (tensor<f32>) -> tensor<2x2x6x8xf32>
      %cst_95 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %111 = stablehlo.broadcast_in_dim %cst_95, dims = [] : (tensor<f32>) -> tensor<2x2x6x11xf32>
      %cst_96 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %112 = stablehlo.broadcast_in_dim %cst_96, dims = [] : (tensor<f32>) -> tensor<2x2x6x1xf32>
      %c_97 = stablehlo.constant dense<0> : tensor<i32>
      %113 = stablehlo.broadcast_in_dim %c_97, dims = [] : (tensor<i32>) -> tensor<2x2x6x1x1xi32>
      %c_98 = stablehlo.constant dense<0> : tensor<i32>
      %114:64 = stablehlo.while(%iterArg_126 = %63, %iterArg_127 = %65, %iterArg_128 = %67, %iterArg_129 = %76, %iterArg_130 = %75, %iterArg_131 = %71, %iterArg_132 = %70, %iterArg_133 = %iterArg_28, %iterArg_134 = %iterArg_29, %iterArg_135 = %iterArg_30, %iterArg_136 = %72#1, %iterArg_137 = %iterArg_31, %iterArg_138 = %iterArg_32, %iterArg_139 = %iterArg_33, %iterArg_140 = %iterArg_34, %iterArg_141 = %iterArg_35, %iterArg_142 = %iterArg_36, %iterArg_143 = %77#1, %iterArg_144 = %iterArg_37, %iterArg_145 = %iterArg_38, %iterArg_146 = %iterArg_39, %iterArg_147 = %iterArg_40, %iterArg_148 = %iterArg_41, %iterArg_149 = %c_98, %iterArg_150 = %62, %iterArg_151 = %62, %iterArg_152 = %62, %iterArg_153 = %62, %iterArg_154 = %78, %iterArg_155 = %79, %iterArg_156 = %80, %iterArg_157 = %81, %iterArg_158 = %82, %iterArg_159 = %83, %iterArg_160 = %84, %iterArg_161 = %85, %iterArg_162 = %86, %iterArg_163 = %87, %iterArg_164 = %88, %iterArg_165 = %89, %iterArg_166 = %90, %iterArg_167 = %91, %iterArg_168 = %92, %iterArg_169 = %93, %iterArg_170 = %94, %iterArg_171 = %95, %iterArg_172 = %96, %iterArg_173 = %97, %iterArg_174 = %98, %iterArg_175 = %99, %iterArg_176 = %100, %iterArg_177 = %101, %iterArg_178 = %102, %iterArg_179 = %103, %iterArg_180 = %104, %iterArg_181 = %105, %iterArg_182 = %106, %iterArg_183 = %107, %iterArg_184 = %108, %iterArg_185 = %109, %iterArg_186 = %110, %iterArg_187 = %111, %iterArg_188 = %112, %iterArg_189 = %113) : tensor<2xi32>, tensor<2x2x6xi32>, tensor<2x2x6xi32>, tensor<1x12xi32>, tensor<6x1xi32>, tensor<1x12xi32>, tensor<6x1xi32>, tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<i32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2xf32>, tensor<2x2x6x1xi32>, tensor<2x2x6x8xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2x2x12x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x12xi1>, tensor<2x2x6x12xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1xf32>, tensor<2x2x12x8xf32>, tensor<2x2x6x12xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2x2x12x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x12xi1>, tensor<2x2x6x12xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1xf32>, tensor<2x2x12x8xf32>, tensor<2x2x6x12xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x11xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1x1xi32>
      cond {
        %c_190 = stablehlo.constant dense<2> : tensor<i32>
        %157 = stablehlo.compare LT, %iterArg_149, %c_190, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %157 : tensor<i1>
      } do {
        %157 = func.call @dynamic_index_in_dim_0(%iterArg_126, %iterArg_149) : (tensor<2xi32>, tensor<i32>) -> tensor<i32>
        %158 = func.call @dynamic_index_in_dim_1(%iterArg_127, %iterArg_149) : (tensor<2x2x6xi32>, tensor<i32>) -> tensor<2x6xi32>
        %159 = func.call @dynamic_index_in_dim_1(%iterArg_128, %iterArg_149) : (tensor<2x2x6xi32>, tensor<i32>) -> tensor<2x6xi32>
        %160:40 = func.call @closed_call(%iterArg_129, %iterArg_130, %iterArg_131, %iterArg_132, %iterArg_133, %iterArg_134, %iterArg_135, %iterArg_136, %iterArg_137, %iterArg_138, %iterArg_139, %iterArg_140, %iterArg_141, %iterArg_142, %iterArg_143, %iterArg_144, %iterArg_145, %iterArg_146, %iterArg_147, %iterArg_148, %iterArg_150, %iterArg_151, %iterArg_152, %iterArg_153, %157, %158, %159) : (tensor<1x12xi32>, tensor<6x1xi32>, tensor<1x12xi32>, tensor<6x1xi32>, tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<i32>, tensor<2x6xi32>, tensor<2x6xi32>) -> (tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<f32>, tensor<2x6x1xi32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<2x6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x1xf32>, tensor<2x6x1xf32>, tensor<2x12x8xf32>, tensor<2x6x12xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<2x6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x1xf32>, tensor<2x6x1xf32>, tensor<2x12x8xf32>, tensor<2x6x12xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x11xf32>, tensor<2x6x1xf32>, tensor<2x6x1x1xi32>)
        %161 = func.call @dynamic_update_index_in_dim(%iterArg_154, %160#4, %iterArg_149) : (tensor<2xf32>, tensor<f32>, tensor<i32>) -> tensor<2xf32>
        %162 = func.call @dynamic_update_index_in_dim_5(%iterArg_155, %160#5, %iterArg_149) : (tensor<2x2x6x1xi32>, tensor<2x6x1xi32>, tensor<i32>) -> tensor<2x2x6x1xi32>
        %163 = func.call @dynamic_update_index_in_dim_6(%iterArg_156, %160#6, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %164 = func.call @dynamic_update_index_in_dim_7(%iterArg_157, %160#7, %iterArg_149) : (tensor<2xi32>, tensor<i32>, tensor<i32>) -> tensor<2xi32>
        %165 = func.call @dynamic_update_index_in_dim_7(%iterArg_158, %160#8, %iterArg_149) : (tensor<2xi32>, tensor<i32>, tensor<i32>) -> tensor<2xi32>
        %166 = func.call @dynamic_update_index_in_dim_8(%iterArg_159, %160#9, %iterArg_149) : (tensor<2x2x12x8xf32>, tensor<2x12x8xf32>, tensor<i32>) -> tensor<2x2x12x8xf32>
        %167 = func.call @dynamic_update_index_in_dim_6(%iterArg_160, %160#10, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %168 = func.call @dynamic_update_index_in_dim_9(%iterArg_161, %160#11, %iterArg_149) : (tensor<2x2x6x12xi1>, tensor<2x6x12xi1>, tensor<i32>) -> tensor<2x2x6x12xi1>
        %169 = func.call @dynamic_update_index_in_dim_10(%iterArg_162, %160#12, %iterArg_149) : (tensor<2x2x6x12xf32>, tensor<2x6x12xf32>, tensor<i32>) -> tensor<2x2x6x12xf32>
        %170 = func.call @dynamic_update_index_in_dim_11(%iterArg_163, %160#13, %iterArg_149) : (tensor<2x2x6x1xf32>, tensor<2x6x1xf32>, tensor<i32>) -> tensor<2x2x6x1xf32>
        %171 = func.call @dynamic_update_index_in_dim_11(%iterArg_164, %160#14, %iterArg_149) : (tensor<2x2x6x1xf32>, tensor<2x6x1xf32>, tensor<i32>) -> tensor<2x2x6x1xf32>
        %172 = func.call @dynamic_update_index_in_dim_8(%iterArg_165, %160#15, %iterArg_149) : (tensor<2x2x12x8xf32>, tensor<2x12x8xf32>, tensor<i32>) -> tensor<2x2x12x8xf32>
        %173 = func.call @dynamic_update_index_in_dim_10(%iterArg_166, %160#16, %iterArg_149) : (tensor<2x2x6x12xf32>, tensor<2x6x12xf32>, tensor<i32>) -> tensor<2x2x6x12xf32>
        %174 = func.call @dynamic_update_index_in_dim_6(%iterArg_167, %160#17, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %175 = func.call @dynamic_update_index_in_dim_6(%iterArg_168, %160#18, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %176 = func.call @dynamic_update_index_in_dim_6(%iterArg_169, %160#19, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %177 = func.call @dynamic_update_index_in_dim_6(%iterArg_170, %160#20, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %178 = func.call @dynamic_update_index_in_dim_6(%iterArg_171, %160#21, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %179 = func.call @dynamic_update_index_in_dim_7(%iterArg_172, %160#22, %iterArg_149) : (tensor<2xi32>, tensor<i32>, tensor<i32>) -> tensor<2xi32>
        %180 = func.call @dynamic_update_index_in_dim_7(%iterArg_173, %160#23, %iterArg_149) : (tensor<2xi32>, tensor<i32>, tensor<i32>) -> tensor<2xi32>
        %181 = func.call @dynamic_update_index_in_dim_8(%iterArg_174, %160#24, %iterArg_149) : (tensor<2x2x12x8xf32>, tensor<2x12x8xf32>, tensor<i32>) -> tensor<2x2x12x8xf32>
        %182 = func.call @dynamic_update_index_in_dim_6(%iterArg_175, %160#25, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %183 = func.call @dynamic_update_index_in_dim_9(%iterArg_176, %160#26, %iterArg_149) : (tensor<2x2x6x12xi1>, tensor<2x6x12xi1>, tensor<i32>) -> tensor<2x2x6x12xi1>
        %184 = func.call @dynamic_update_index_in_dim_10(%iterArg_177, %160#27, %iterArg_149) : (tensor<2x2x6x12xf32>, tensor<2x6x12xf32>, tensor<i32>) -> tensor<2x2x6x12xf32>
        %185 = func.call @dynamic_update_index_in_dim_11(%iterArg_178, %160#28, %iterArg_149) : (tensor<2x2x6x1xf32>, tensor<2x6x1xf32>, tensor<i32>) -> tensor<2x2x6x1xf32>
        %186 = func.call @dynamic_update_index_in_dim_11(%iterArg_179, %160#29, %iterArg_149) : (tensor<2x2x6x1xf32>, tensor<2x6x1xf32>, tensor<i32>) -> tensor<2x2x6x1xf32>
        %187 = func.call @dynamic_update_index_in_dim_8(%iterArg_180, %160#30, %iterArg_149) : (tensor<2x2x12x8xf32>, tensor<2x12x8xf32>, tensor<i32>) -> tensor<2x2x12x8xf32>
        %188 = func.call @dynamic_update_index_in_dim_10(%iterArg_181, %160#31, %iterArg_149) : (tensor<2x2x6x12xf32>, tensor<2x6x12xf32>, tensor<i32>) -> tensor<2x2x6x12xf32>
        %189 = func.call @dynamic_update_index_in_dim_6(%iterArg_182, %160#32, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %190 = func.call @dynamic_update_index_in_dim_6(%iterArg_183, %160#33, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %191 = func.call @dynamic_update_index_in_dim_6(%iterArg_184, %160#34, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %192 = func.call @dynamic_update_index_in_dim_6(%iterArg_185, %160#35, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %193 = func.call @dynamic_update_index_in_dim_6(%iterArg_186, %160#36, %iterArg_149) : (tensor<2x2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>) -> tensor<2x2x6x8xf32>
        %194 = func.call @dynamic_update_index_in_dim_12(%iterArg_187, %160#37, %iterArg_149) : (tensor<2x2x6x11xf32>, tensor<2x6x11xf32>, tensor<i32>) -> tensor<2x2x6x11xf32>
        %195 = func.call @dynamic_update_index_in_dim_11(%iterArg_188, %160#38, %iterArg_149) : (tensor<2x2x6x1xf32>, tensor<2x6x1xf32>, tensor<i32>) -> tensor<2x2x6x1xf32>
        %196 = func.call @dynamic_update_index_in_dim_13(%iterArg_189, %160#39, %iterArg_149) : (tensor<2x2x6x1x1xi32>, tensor<2x6x1x1xi32>, tensor<i32>) -> tensor<2x2x6x1x1xi32>
        %c_190 = stablehlo.constant dense<1> : tensor<i32>
        %197 = stablehlo.add %iterArg_149, %c_190 : tensor<i32>
        stablehlo.return %iterArg_126, %iterArg_127, %iterArg_128, %iterArg_129, %iterArg_130, %iterArg_131, %iterArg_132, %iterArg_133, %iterArg_134, %iterArg_135, %iterArg_136, %iterArg_137, %iterArg_138, %iterArg_139, %iterArg_140, %iterArg_141, %iterArg_142, %iterArg_143, %iterArg_144, %iterArg_145, %iterArg_146, %iterArg_147, %iterArg_148, %197, %160#0, %160#1, %160#2, %160#3, %161, %162, %163, %164, %165, %166, %167, %168, %169, %170, %171, %172, %173, %174, %175, %176, %177, %178, %179, %180, %181, %182, %183, %184, %185, %186, %187, %188, %189, %190, %191, %192, %193, %194, %195, %196 : tensor<2xi32>, tensor<2x2x6xi32>, tensor<2x2x6xi32>, tensor<1x12xi32>, tensor<6x1xi32>, tensor<1x12xi32>, tensor<6x1xi32>, tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<i32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2xf32>, tensor<2x2x6x1xi32>, tensor<2x2x6x8xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2x2x12x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x12xi1>, tensor<2x2x6x12xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1xf32>, tensor<2x2x12x8xf32>, tensor<2x2x6x12xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2x2x12x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x12xi1>, tensor<2x2x6x12xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1xf32>, tensor<2x2x12x8xf32>, tensor<2x2x6x12xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x11xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1x1xi32>
      }
      %cst_99 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %115 = stablehlo.reduce(%114#28 init: %cst_99) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
      %cst_100 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %116 = stablehlo.divide %115, %cst_100 : tensor<f32>
      %cst_101 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %117 = stablehlo.broadcast_in_dim %cst_101, dims = [] : (tensor<f32>) -> tensor<2x12x8xf32>
      %cst_102 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %118 = stablehlo.broadcast_in_dim %cst_102, dims = [] : (tensor<f32>) -> tensor<2x12x8xf32>
      %cst_103 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %119 = stablehlo.broadcast_in_dim %cst_103, dims = [] : (tensor<f32>) -> tensor<2x12x8xf32>
      %cst_104 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %120 = stablehlo.broadcast_in_dim %cst_104, dims = [] : (tensor<f32>) -> tensor<2x12x8xf32>
      %cst_105 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
      %cst_106 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
      %121 = stablehlo.divide %cst_105, %cst_106 : tensor<f32>
      %122 = stablehlo.broadcast_in_dim %121, dims = [] : (tensor<f32>) -> tensor<2xf32>
      %cst_107 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %123 = stablehlo.broadcast_in_dim %cst_107, dims = [] : (tensor<f32>) -> tensor<2x12x8xf32>
      %cst_108 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %124 = stablehlo.broadcast_in_dim %cst_108, dims = [] : (tensor<f32>) -> tensor<2x12x8xf32>
      %cst_109 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %125 = stablehlo.broadcast_in_dim %cst_109, dims = [] : (tensor<f32>) -> tensor<2x12x8xf32>
      %cst_110 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %126 = stablehlo.broadcast_in_dim %cst_110, dims = [] : (tensor<f32>) -> tensor<2x12x8xf32>
      %cst_111 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %127 = stablehlo.broadcast_in_dim %cst_111, dims = [] : (tensor<f32>) -> tensor<11x8xf32>
      %cst_112 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %128 = stablehlo.broadcast_in_dim %cst_112, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_113 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %129 = stablehlo.broadcast_in_dim %cst_113, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_114 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %130 = stablehlo.broadcast_in_dim %cst_114, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_115 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %131 = stablehlo.broadcast_in_dim %cst_115, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_116 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %132 = stablehlo.broadcast_in_dim %cst_116, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_117 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %133 = stablehlo.broadcast_in_dim %cst_117, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_118 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %134 = stablehlo.broadcast_in_dim %cst_118, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_119 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %135 = stablehlo.broadcast_in_dim %cst_119, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_120 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %136 = stablehlo.broadcast_in_dim %cst_120, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_121 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %137 = stablehlo.broadcast_in_dim %cst_121, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_122 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %138 = stablehlo.broadcast_in_dim %cst_122, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_123 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %139 = stablehlo.broadcast_in_dim %cst_123, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
      %cst_124 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %140 = stablehlo.broadcast_in_dim %cst_124, dims = [] : (tensor<f32>) -> tensor<8x11xf32>
      %c_125 = stablehlo.constant dense<0> : tensor<i32>
      %141:70 = stablehlo.while(%iterArg_126 = %122, %iterArg_127 = %114#29, %iterArg_128 = %114#30, %iterArg_129 = %114#31, %iterArg_130 = %114#32, %iterArg_131 = %114#33, %iterArg_132 = %114#34, %iterArg_133 = %114#35, %iterArg_134 = %114#36, %iterArg_135 = %114#37, %iterArg_136 = %114#38, %iterArg_137 = %114#39, %iterArg_138 = %114#40, %iterArg_139 = %114#41, %iterArg_140 = %114#42, %iterArg_141 = %114#43, %iterArg_142 = %114#44, %iterArg_143 = %114#45, %iterArg_144 = %114#46, %iterArg_145 = %114#47, %iterArg_146 = %114#48, %iterArg_147 = %114#49, %iterArg_148 = %114#50, %iterArg_149 = %114#51, %iterArg_150 = %114#52, %iterArg_151 = %114#53, %iterArg_152 = %114#54, %iterArg_153 = %114#55, %iterArg_154 = %114#56, %iterArg_155 = %114#57, %iterArg_156 = %114#58, %iterArg_157 = %114#59, %iterArg_158 = %114#60, %iterArg_159 = %114#61, %iterArg_160 = %114#62, %iterArg_161 = %114#63, %iterArg_162 = %iterArg_30, %iterArg_163 = %iterArg_31, %iterArg_164 = %iterArg_29, %iterArg_165 = %72#0, %iterArg_166 = %iterArg_32, %iterArg_167 = %iterArg_33, %iterArg_168 = %iterArg_34, %iterArg_169 = %iterArg_36, %iterArg_170 = %iterArg_37, %iterArg_171 = %iterArg_35, %iterArg_172 = %77#0, %iterArg_173 = %iterArg_38, %iterArg_174 = %iterArg_39, %iterArg_175 = %iterArg_40, %iterArg_176 = %iterArg_41, %iterArg_177 = %c_125, %iterArg_178 = %127, %iterArg_179 = %128, %iterArg_180 = %129, %iterArg_181 = %130, %iterArg_182 = %131, %iterArg_183 = %132, %iterArg_184 = %133, %iterArg_185 = %134, %iterArg_186 = %135, %iterArg_187 = %136, %iterArg_188 = %137, %iterArg_189 = %138, %iterArg_190 = %139, %iterArg_191 = %140, %iterArg_192 = %123, %iterArg_193 = %124, %iterArg_194 = %125, %iterArg_195 = %126) : tensor<2xf32>, tensor<2x2x6x1xi32>, tensor<2x2x6x8xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2x2x12x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x12xi1>, tensor<2x2x6x12xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1xf32>, tensor<2x2x12x8xf32>, tensor<2x2x6x12xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2x2x12x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x12xi1>, tensor<2x2x6x12xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1xf32>, tensor<2x2x12x8xf32>, tensor<2x2x6x12xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x11xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1x1xi32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<i32>, tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>
      cond {
        %c_196 = stablehlo.constant dense<2> : tensor<i32>
        %157 = stablehlo.compare LT, %iterArg_177, %c_196, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %157 : tensor<i1>
      } do {
        %c_196 = stablehlo.constant dense<2> : tensor<i32>
        %157 = stablehlo.subtract %c_196, %iterArg_177 : tensor<i32>
        %c_197 = stablehlo.constant dense<1> : tensor<i32>
        %158 = stablehlo.subtract %157, %c_197 : tensor<i32>
        %159 = func.call @dynamic_index_in_dim_14(%iterArg_126, %158) : (tensor<2xf32>, tensor<i32>) -> tensor<f32>
        %160 = func.call @dynamic_index_in_dim_15(%iterArg_127, %158) : (tensor<2x2x6x1xi32>, tensor<i32>) -> tensor<2x6x1xi32>
        %161 = func.call @dynamic_index_in_dim_16(%iterArg_128, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %162 = func.call @dynamic_index_in_dim_0(%iterArg_129, %158) : (tensor<2xi32>, tensor<i32>) -> tensor<i32>
        %163 = func.call @dynamic_index_in_dim_0(%iterArg_130, %158) : (tensor<2xi32>, tensor<i32>) -> tensor<i32>
        %164 = func.call @dynamic_index_in_dim_17(%iterArg_131, %158) : (tensor<2x2x12x8xf32>, tensor<i32>) -> tensor<2x12x8xf32>
        %165 = func.call @dynamic_index_in_dim_16(%iterArg_132, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %166 = func.call @dynamic_index_in_dim_18(%iterArg_133, %158) : (tensor<2x2x6x12xi1>, tensor<i32>) -> tensor<2x6x12xi1>
        %167 = func.call @dynamic_index_in_dim_19(%iterArg_134, %158) : (tensor<2x2x6x12xf32>, tensor<i32>) -> tensor<2x6x12xf32>
        %168 = func.call @dynamic_index_in_dim_20(%iterArg_135, %158) : (tensor<2x2x6x1xf32>, tensor<i32>) -> tensor<2x6x1xf32>
        %169 = func.call @dynamic_index_in_dim_20(%iterArg_136, %158) : (tensor<2x2x6x1xf32>, tensor<i32>) -> tensor<2x6x1xf32>
        %170 = func.call @dynamic_index_in_dim_17(%iterArg_137, %158) : (tensor<2x2x12x8xf32>, tensor<i32>) -> tensor<2x12x8xf32>
        %171 = func.call @dynamic_index_in_dim_19(%iterArg_138, %158) : (tensor<2x2x6x12xf32>, tensor<i32>) -> tensor<2x6x12xf32>
        %172 = func.call @dynamic_index_in_dim_16(%iterArg_139, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %173 = func.call @dynamic_index_in_dim_16(%iterArg_140, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %174 = func.call @dynamic_index_in_dim_16(%iterArg_141, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %175 = func.call @dynamic_index_in_dim_16(%iterArg_142, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %176 = func.call @dynamic_index_in_dim_16(%iterArg_143, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %177 = func.call @dynamic_index_in_dim_0(%iterArg_144, %158) : (tensor<2xi32>, tensor<i32>) -> tensor<i32>
        %178 = func.call @dynamic_index_in_dim_0(%iterArg_145, %158) : (tensor<2xi32>, tensor<i32>) -> tensor<i32>
        %179 = func.call @dynamic_index_in_dim_17(%iterArg_146, %158) : (tensor<2x2x12x8xf32>, tensor<i32>) -> tensor<2x12x8xf32>
        %180 = func.call @dynamic_index_in_dim_16(%iterArg_147, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %181 = func.call @dynamic_index_in_dim_18(%iterArg_148, %158) : (tensor<2x2x6x12xi1>, tensor<i32>) -> tensor<2x6x12xi1>
        %182 = func.call @dynamic_index_in_dim_19(%iterArg_149, %158) : (tensor<2x2x6x12xf32>, tensor<i32>) -> tensor<2x6x12xf32>
        %183 = func.call @dynamic_index_in_dim_20(%iterArg_150, %158) : (tensor<2x2x6x1xf32>, tensor<i32>) -> tensor<2x6x1xf32>
        %184 = func.call @dynamic_index_in_dim_20(%iterArg_151, %158) : (tensor<2x2x6x1xf32>, tensor<i32>) -> tensor<2x6x1xf32>
        %185 = func.call @dynamic_index_in_dim_17(%iterArg_152, %158) : (tensor<2x2x12x8xf32>, tensor<i32>) -> tensor<2x12x8xf32>
        %186 = func.call @dynamic_index_in_dim_19(%iterArg_153, %158) : (tensor<2x2x6x12xf32>, tensor<i32>) -> tensor<2x6x12xf32>
        %187 = func.call @dynamic_index_in_dim_16(%iterArg_154, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %188 = func.call @dynamic_index_in_dim_16(%iterArg_155, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %189 = func.call @dynamic_index_in_dim_16(%iterArg_156, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %190 = func.call @dynamic_index_in_dim_16(%iterArg_157, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %191 = func.call @dynamic_index_in_dim_16(%iterArg_158, %158) : (tensor<2x2x6x8xf32>, tensor<i32>) -> tensor<2x6x8xf32>
        %192 = func.call @dynamic_index_in_dim_21(%iterArg_159, %158) : (tensor<2x2x6x11xf32>, tensor<i32>) -> tensor<2x6x11xf32>
        %193 = func.call @dynamic_index_in_dim_20(%iterArg_160, %158) : (tensor<2x2x6x1xf32>, tensor<i32>) -> tensor<2x6x1xf32>
        %194 = func.call @dynamic_index_in_dim_22(%iterArg_161, %158) : (tensor<2x2x6x1x1xi32>, tensor<i32>) -> tensor<2x6x1x1xi32>
        %195:18 = func.call @closed_call_23(%iterArg_162, %iterArg_163, %iterArg_164, %iterArg_165, %iterArg_166, %iterArg_167, %iterArg_168, %iterArg_169, %iterArg_170, %iterArg_171, %iterArg_172, %iterArg_173, %iterArg_174, %iterArg_175, %iterArg_176, %iterArg_178, %iterArg_179, %iterArg_180, %iterArg_181, %iterArg_182, %iterArg_183, %iterArg_184, %iterArg_185, %iterArg_186, %iterArg_187, %iterArg_188, %iterArg_189, %iterArg_190, %iterArg_191, %iterArg_192, %iterArg_193, %iterArg_194, %iterArg_195, %159, %160, %161, %162, %163, %164, %165, %166, %167, %168, %169, %170, %171, %172, %173, %174, %175, %176, %177, %178, %179, %180, %181, %182, %183, %184, %185, %186, %187, %188, %189, %190, %191, %192, %193, %194) : (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<f32>, tensor<2x6x1xi32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<2x6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x1xf32>, tensor<2x6x1xf32>, tensor<2x12x8xf32>, tensor<2x6x12xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<2x6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x1xf32>, tensor<2x6x1xf32>, tensor<2x12x8xf32>, tensor<2x6x12xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x11xf32>, tensor<2x6x1xf32>, tensor<2x6x1x1xi32>) -> (tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>)
        %c_198 = stablehlo.constant dense<1> : tensor<i32>
        %196 = stablehlo.add %iterArg_177, %c_198 : tensor<i32>
        stablehlo.return %iterArg_126, %iterArg_127, %iterArg_128, %iterArg_129, %iterArg_130, %iterArg_131, %iterArg_132, %iterArg_133, %iterArg_134, %iterArg_135, %iterArg_136, %iterArg_137, %iterArg_138, %iterArg_139, %iterArg_140, %iterArg_141, %iterArg_142, %iterArg_143, %iterArg_144, %iterArg_145, %iterArg_146, %iterArg_147, %iterArg_148, %iterArg_149, %iterArg_150, %iterArg_151, %iterArg_152, %iterArg_153, %iterArg_154, %iterArg_155, %iterArg_156, %iterArg_157, %iterArg_158, %iterArg_159, %iterArg_160, %iterArg_161, %iterArg_162, %iterArg_163, %iterArg_164, %iterArg_165, %iterArg_166, %iterArg_167, %iterArg_168, %iterArg_169, %iterArg_170, %iterArg_171, %iterArg_172, %iterArg_173, %iterArg_174, %iterArg_175, %iterArg_176, %196, %195#0, %195#1, %195#2, %195#3, %195#4, %195#5, %195#6, %195#7, %195#8, %195#9, %195#10, %195#11, %195#12, %195#13, %195#14, %195#15, %195#16, %195#17 : tensor<2xf32>, tensor<2x2x6x1xi32>, tensor<2x2x6x8xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2x2x12x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x12xi1>, tensor<2x2x6x12xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1xf32>, tensor<2x2x12x8xf32>, tensor<2x2x6x12xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2x2x12x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x12xi1>, tensor<2x2x6x12xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1xf32>, tensor<2x2x12x8xf32>, tensor<2x2x6x12xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x8xf32>, tensor<2x2x6x11xf32>, tensor<2x2x6x1xf32>, tensor<2x2x6x1x1xi32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<2x6x12xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<i32>, tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>
      }
      %142 = func.call @dynamic_update_index_in_dim_27(%iterArg_43, %116, %iterArg_42) : (tensor<2xf32>, tensor<f32>, tensor<i32>) -> tensor<2xf32>
      %143 = stablehlo.add %iterArg_44, %141#58 : tensor<8x8xf32>
      %144 = stablehlo.add %iterArg_45, %141#53 : tensor<8x8xf32>
      %145 = stablehlo.add %iterArg_46, %141#56 : tensor<8x8xf32>
      %146 = stablehlo.add %iterArg_47, %141#55 : tensor<8x8xf32>
      %147 = stablehlo.add %iterArg_48, %141#57 : tensor<8x8xf32>
      %148 = stablehlo.add %iterArg_49, %141#54 : tensor<8x8xf32>
      %149 = stablehlo.add %iterArg_50, %141#64 : tensor<8x8xf32>
      %150 = stablehlo.add %iterArg_51, %141#59 : tensor<8x8xf32>
      %151 = stablehlo.add %iterArg_52, %141#62 : tensor<8x8xf32>
      %152 = stablehlo.add %iterArg_53, %141#61 : tensor<8x8xf32>
      %153 = stablehlo.add %iterArg_54, %141#63 : tensor<8x8xf32>
      %154 = stablehlo.add %iterArg_55, %141#60 : tensor<8x8xf32>
      %155 = stablehlo.add %iterArg_56, %141#65 : tensor<8x11xf32>
      %156 = stablehlo.add %iterArg_57, %141#52 : tensor<11x8xf32>
      stablehlo.return %iterArg, %iterArg_28, %iterArg_29, %iterArg_30, %iterArg_31, %iterArg_32, %iterArg_33, %iterArg_34, %iterArg_35, %iterArg_36, %iterArg_37, %iterArg_38, %iterArg_39, %iterArg_40, %iterArg_41, %58, %142, %143, %144, %145, %146, %147, %148, %149, %150, %151, %152, %153, %154, %155, %156 : tensor<2x2x13xi32>, tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<i32>, tensor<2xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<11x8xf32>
    }
    %cst_14 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %16 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %17 = stablehlo.multiply %16, %15#17 : tensor<8x8xf32>
    %18 = stablehlo.subtract %arg0, %17 : tensor<8x8xf32>
    %cst_15 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %20 = stablehlo.multiply %19, %15#18 : tensor<8x8xf32>
    %21 = stablehlo.subtract %arg1, %20 : tensor<8x8xf32>
    %cst_16 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %23 = stablehlo.multiply %22, %15#19 : tensor<8x8xf32>
    %24 = stablehlo.subtract %arg2, %23 : tensor<8x8xf32>
    %cst_17 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %25 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %26 = stablehlo.multiply %25, %15#20 : tensor<8x8xf32>
    %27 = stablehlo.subtract %arg3, %26 : tensor<8x8xf32>
    %cst_18 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %29 = stablehlo.multiply %28, %15#21 : tensor<8x8xf32>
    %30 = stablehlo.subtract %arg4, %29 : tensor<8x8xf32>
    %cst_19 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %31 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %32 = stablehlo.multiply %31, %15#22 : tensor<8x8xf32>
    %33 = stablehlo.subtract %arg5, %32 : tensor<8x8xf32>
    %cst_20 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %34 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %35 = stablehlo.multiply %34, %15#23 : tensor<8x8xf32>
    %36 = stablehlo.subtract %arg6, %35 : tensor<8x8xf32>
    %cst_21 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %37 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %38 = stablehlo.multiply %37, %15#24 : tensor<8x8xf32>
    %39 = stablehlo.subtract %arg7, %38 : tensor<8x8xf32>
    %cst_22 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %40 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %41 = stablehlo.multiply %40, %15#25 : tensor<8x8xf32>
    %42 = stablehlo.subtract %arg8, %41 : tensor<8x8xf32>
    %cst_23 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %43 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %44 = stablehlo.multiply %43, %15#26 : tensor<8x8xf32>
    %45 = stablehlo.subtract %arg9, %44 : tensor<8x8xf32>
    %cst_24 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %46 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %47 = stablehlo.multiply %46, %15#27 : tensor<8x8xf32>
    %48 = stablehlo.subtract %arg10, %47 : tensor<8x8xf32>
    %cst_25 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %49 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %50 = stablehlo.multiply %49, %15#28 : tensor<8x8xf32>
    %51 = stablehlo.subtract %arg11, %50 : tensor<8x8xf32>
    %cst_26 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %52 = stablehlo.broadcast_in_dim %cst_26, dims = [] : (tensor<f32>) -> tensor<8x11xf32>
    %53 = stablehlo.multiply %52, %15#29 : tensor<8x11xf32>
    %54 = stablehlo.subtract %arg12, %53 : tensor<8x11xf32>
    %cst_27 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %55 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<11x8xf32>
    %56 = stablehlo.multiply %55, %15#30 : tensor<11x8xf32>
    %57 = stablehlo.subtract %arg13, %56 : tensor<11x8xf32>
    return %18, %21, %24, %27, %30, %33, %36, %39, %42, %45, %48, %51, %54, %57, %15#16 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<11x8xf32>, tensor<2xf32>
  }
  func.func private @dynamic_index_in_dim(%arg0: tensor<2x2x13xi32>, %arg1: tensor<i32>) -> tensor<2x13xi32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 2, 13] : (tensor<2x2x13xi32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x13xi32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x13xi32>) -> tensor<2x13xi32>
    return %1 : tensor<2x13xi32>
  }
  func.func private @_where(%arg0: tensor<f32>) -> (tensor<2x6x12xf32>, tensor<2x6x12xf32>) {
    %0 = stablehlo.convert %arg0 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<2x6x12xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x6x12xf32>
    return %2, %1 : tensor<2x6x12xf32>, tensor<2x6x12xf32>
  }
  func.func private @log_softmax() {
    return
  }
  func.func private @take_along_axis() {
    return
  }
  func.func private @dynamic_index_in_dim_0(%arg0: tensor<2xi32>, %arg1: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.dynamic_slice %arg0, %arg1, sizes = [1] : (tensor<2xi32>, tensor<i32>) -> tensor<1xi32>
    %1 = stablehlo.reshape %0 : (tensor<1xi32>) -> tensor<i32>
    return %1 : tensor<i32>
  }
  func.func private @dynamic_index_in_dim_1(%arg0: tensor<2x2x6xi32>, %arg1: tensor<i32>) -> tensor<2x6xi32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, sizes = [1, 2, 6] : (tensor<2x2x6xi32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x6xi32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x6xi32>) -> tensor<2x6xi32>
    return %1 : tensor<2x6xi32>
  }
  func.func private @closed_call(%arg0: tensor<1x12xi32>, %arg1: tensor<6x1xi32>, %arg2: tensor<1x12xi32>, %arg3: tensor<6x1xi32>, %arg4: tensor<11x8xf32>, %arg5: tensor<8x8xf32>, %arg6: tensor<8x8xf32>, %arg7: tensor<2x6x12xf32>, %arg8: tensor<8x8xf32>, %arg9: tensor<8x8xf32>, %arg10: tensor<8x8xf32>, %arg11: tensor<8x8xf32>, %arg12: tensor<8x8xf32>, %arg13: tensor<8x8xf32>, %arg14: tensor<2x6x12xf32>, %arg15: tensor<8x8xf32>, %arg16: tensor<8x8xf32>, %arg17: tensor<8x8xf32>, %arg18: tensor<8x8xf32>, %arg19: tensor<8x11xf32>, %arg20: tensor<2x12x8xf32>, %arg21: tensor<2x12x8xf32>, %arg22: tensor<2x12x8xf32>, %arg23: tensor<2x12x8xf32>, %arg24: tensor<i32>, %arg25: tensor<2x6xi32>, %arg26: tensor<2x6xi32>) -> (tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<f32>, tensor<2x6x1xi32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<2x6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x1xf32>, tensor<2x6x1xf32>, tensor<2x12x8xf32>, tensor<2x6x12xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<2x6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x1xf32>, tensor<2x6x1xf32>, tensor<2x12x8xf32>, tensor<2x6x12xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x11xf32>, tensor<2x6x1xf32>, tensor<2x6x1x1xi32>) {
    %c = stablehlo.constant dense<6> : tensor<i32>
    %0 = stablehlo.multiply %arg24, %c : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<2x6xi32>
    %2 = stablehlo.compare LT, %arg25, %1, SIGNED : (tensor<2x6xi32>, tensor<2x6xi32>) -> tensor<2x6xi1>
    %c_1 = stablehlo.constant dense<11> : tensor<i32>
    %3 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<i32>) -> tensor<2x6xi32>
    %4 = stablehlo.add %arg25, %3 : tensor<2x6xi32>
    %5 = stablehlo.select %2, %4, %arg25 : tensor<2x6xi1>, tensor<2x6xi32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1] : (tensor<2x6xi32>) -> tensor<2x6x1xi32>
    %7 = "stablehlo.gather"(%arg4, %6) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<11x8xf32>, tensor<2x6x1xi32>) -> tensor<2x6x8xf32>
    %8 = stablehlo.dot_general %7, %arg6, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %9 = stablehlo.compare LT, %0, %c_2, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_3 = stablehlo.constant dense<12> : tensor<i32>
    %10 = stablehlo.add %0, %c_3 : tensor<i32>
    %11 = stablehlo.select %9, %10, %0 : tensor<i1>, tensor<i32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %c_5 = stablehlo.constant dense<0> : tensor<i32>
    %12 = stablehlo.dynamic_update_slice %arg20, %8, %c_4, %11, %c_5 : (tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x12x8xf32>
    %13 = stablehlo.dot_general %7, %arg8, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %c_6 = stablehlo.constant dense<0> : tensor<i32>
    %14 = stablehlo.compare LT, %0, %c_6, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_7 = stablehlo.constant dense<12> : tensor<i32>
    %15 = stablehlo.add %0, %c_7 : tensor<i32>
    %16 = stablehlo.select %14, %15, %0 : tensor<i1>, tensor<i32>
    %c_8 = stablehlo.constant dense<0> : tensor<i32>
    %c_9 = stablehlo.constant dense<0> : tensor<i32>
    %17 = stablehlo.dynamic_update_slice %arg21, %13, %c_8, %16, %c_9 : (tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x12x8xf32>
    %18 = stablehlo.dot_general %7, %arg5, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %19 = stablehlo.dot_general %18, %12, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x12x8xf32>) -> tensor<2x6x12xf32>
    %cst = stablehlo.constant dense<2.82842708> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x6x12xf32>
    %21 = stablehlo.divide %19, %20 : tensor<2x6x12xf32>
    %22 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<6x1xi32>
    %23 = stablehlo.add %22, %arg3 : tensor<6x1xi32>
    %24 = stablehlo.broadcast_in_dim %arg2, dims = [0, 1] : (tensor<1x12xi32>) -> tensor<6x12xi32>
    %25 = stablehlo.broadcast_in_dim %23, dims = [0, 1] : (tensor<6x1xi32>) -> tensor<6x12xi32>
    %26 = stablehlo.compare LE, %24, %25, SIGNED : (tensor<6x12xi32>, tensor<6x12xi32>) -> tensor<6x12xi1>
    %27:2 = call @_where_2(%26, %21, %arg7) : (tensor<6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x12xf32>) -> (tensor<2x6x12xf32>, tensor<2x6x12xi1>)
    %cst_10 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %28 = stablehlo.reduce(%27#0 init: %cst_10) applies stablehlo.maximum across dimensions = [2] : (tensor<2x6x12xf32>, tensor<f32>) -> tensor<2x6xf32>
    %cst_11 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<2x6xf32>
    %30 = stablehlo.maximum %29, %28 : tensor<2x6xf32>
    %31 = stablehlo.broadcast_in_dim %30, dims = [0, 1] : (tensor<2x6xf32>) -> tensor<2x6x1xf32>
    %32 = stablehlo.broadcast_in_dim %31, dims = [0, 1, 2] : (tensor<2x6x1xf32>) -> tensor<2x6x12xf32>
    %33 = stablehlo.subtract %27#0, %32 : tensor<2x6x12xf32>
    %34 = stablehlo.exponential %33 : tensor<2x6x12xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %35 = stablehlo.reduce(%34 init: %cst_12) applies stablehlo.add across dimensions = [2] : (tensor<2x6x12xf32>, tensor<f32>) -> tensor<2x6xf32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1] : (tensor<2x6xf32>) -> tensor<2x6x1xf32>
    %37 = stablehlo.broadcast_in_dim %36, dims = [0, 1, 2] : (tensor<2x6x1xf32>) -> tensor<2x6x12xf32>
    %38 = stablehlo.divide %34, %37 : tensor<2x6x12xf32>
    %39 = stablehlo.multiply %36, %36 : tensor<2x6x1xf32>
    %cst_13 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %40 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<2x6x1xf32>
    %41 = stablehlo.divide %40, %39 : tensor<2x6x1xf32>
    %42 = stablehlo.dot_general %38, %17, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x12xf32>, tensor<2x12x8xf32>) -> tensor<2x6x8xf32>
    %43 = stablehlo.dot_general %42, %arg9, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %44 = stablehlo.add %7, %43 : tensor<2x6x8xf32>
    %45 = stablehlo.dot_general %44, %arg10, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %46 = stablehlo.tanh %45 : tensor<2x6x8xf32>
    %cst_14 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %47 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<2x6x8xf32>
    %48 = stablehlo.subtract %47, %46 : tensor<2x6x8xf32>
    %49 = stablehlo.dot_general %46, %arg11, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %50 = stablehlo.add %44, %49 : tensor<2x6x8xf32>
    %51 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}} %50 : tensor<2x6x8xf32>
    %52 = stablehlo.dot_general %51, %arg13, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %c_15 = stablehlo.constant dense<0> : tensor<i32>
    %53 = stablehlo.compare LT, %0, %c_15, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_16 = stablehlo.constant dense<12> : tensor<i32>
    %54 = stablehlo.add %0, %c_16 : tensor<i32>
    %55 = stablehlo.select %53, %54, %0 : tensor<i1>, tensor<i32>
    %c_17 = stablehlo.constant dense<0> : tensor<i32>
    %c_18 = stablehlo.constant dense<0> : tensor<i32>
    %56 = stablehlo.dynamic_update_slice %arg22, %52, %c_17, %55, %c_18 : (tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x12x8xf32>
    %57 = stablehlo.dot_general %51, %arg15, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %c_19 = stablehlo.constant dense<0> : tensor<i32>
    %58 = stablehlo.compare LT, %0, %c_19, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_20 = stablehlo.constant dense<12> : tensor<i32>
    %59 = stablehlo.add %0, %c_20 : tensor<i32>
    %60 = stablehlo.select %58, %59, %0 : tensor<i1>, tensor<i32>
    %c_21 = stablehlo.constant dense<0> : tensor<i32>
    %c_22 = stablehlo.constant dense<0> : tensor<i32>
    %61 = stablehlo.dynamic_update_slice %arg23, %57, %c_21, %60, %c_22 : (tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x12x8xf32>
    %62 = stablehlo.dot_general %51, %arg12, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %63 = stablehlo.dot_general %62, %56, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x12x8xf32>) -> tensor<2x6x12xf32>
    %cst_23 = stablehlo.constant dense<2.82842708> : tensor<f32>
    %64 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<2x6x12xf32>
    %65 = stablehlo.divide %63, %64 : tensor<2x6x12xf32>
    %66 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<6x1xi32>
    %67 = stablehlo.add %66, %arg1 : tensor<6x1xi32>
    %68 = stablehlo.broadcast_in_dim %arg0, dims = [0, 1] : (tensor<1x12xi32>) -> tensor<6x12xi32>
    %69 = stablehlo.broadcast_in_dim %67, dims = [0, 1] : (tensor<6x1xi32>) -> tensor<6x12xi32>
    %70 = stablehlo.compare LE, %68, %69, SIGNED : (tensor<6x12xi32>, tensor<6x12xi32>) -> tensor<6x12xi1>
    %71:2 = call @_where_2(%70, %65, %arg14) : (tensor<6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x12xf32>) -> (tensor<2x6x12xf32>, tensor<2x6x12xi1>)
    %cst_24 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %72 = stablehlo.reduce(%71#0 init: %cst_24) applies stablehlo.maximum across dimensions = [2] : (tensor<2x6x12xf32>, tensor<f32>) -> tensor<2x6xf32>
    %cst_25 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %73 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<2x6xf32>
    %74 = stablehlo.maximum %73, %72 : tensor<2x6xf32>
    %75 = stablehlo.broadcast_in_dim %74, dims = [0, 1] : (tensor<2x6xf32>) -> tensor<2x6x1xf32>
    %76 = stablehlo.broadcast_in_dim %75, dims = [0, 1, 2] : (tensor<2x6x1xf32>) -> tensor<2x6x12xf32>
    %77 = stablehlo.subtract %71#0, %76 : tensor<2x6x12xf32>
    %78 = stablehlo.exponential %77 : tensor<2x6x12xf32>
    %cst_26 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %79 = stablehlo.reduce(%78 init: %cst_26) applies stablehlo.add across dimensions = [2] : (tensor<2x6x12xf32>, tensor<f32>) -> tensor<2x6xf32>
    %80 = stablehlo.broadcast_in_dim %79, dims = [0, 1] : (tensor<2x6xf32>) -> tensor<2x6x1xf32>
    %81 = stablehlo.broadcast_in_dim %80, dims = [0, 1, 2] : (tensor<2x6x1xf32>) -> tensor<2x6x12xf32>
    %82 = stablehlo.divide %78, %81 : tensor<2x6x12xf32>
    %83 = stablehlo.multiply %80, %80 : tensor<2x6x1xf32>
    %cst_27 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %84 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<2x6x1xf32>
    %85 = stablehlo.divide %84, %83 : tensor<2x6x1xf32>
    %86 = stablehlo.dot_general %82, %61, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x12xf32>, tensor<2x12x8xf32>) -> tensor<2x6x8xf32>
    %87 = stablehlo.dot_general %86, %arg16, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %88 = stablehlo.add %51, %87 : tensor<2x6x8xf32>
    %89 = stablehlo.dot_general %88, %arg17, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %90 = stablehlo.tanh %89 : tensor<2x6x8xf32>
    %cst_28 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %91 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<2x6x8xf32>
    %92 = stablehlo.subtract %91, %90 : tensor<2x6x8xf32>
    %93 = stablehlo.dot_general %90, %arg18, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %94 = stablehlo.add %88, %93 : tensor<2x6x8xf32>
    %95 = stablehlo.dot_general %94, %arg19, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x11xf32>) -> tensor<2x6x11xf32>
    %96:3 = call @log_softmax_3(%95) : (tensor<2x6x11xf32>) -> (tensor<2x6x11xf32>, tensor<2x6x11xf32>, tensor<2x6x1xf32>)
    %97 = stablehlo.broadcast_in_dim %arg26, dims = [0, 1] : (tensor<2x6xi32>) -> tensor<2x6x1xi32>
    %98:2 = call @take_along_axis_4(%96#0, %97) : (tensor<2x6x11xf32>, tensor<2x6x1xi32>) -> (tensor<2x6x1xf32>, tensor<2x6x1x1xi32>)
    %cst_29 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %99 = stablehlo.reduce(%98#0 init: %cst_29) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x6x1xf32>, tensor<f32>) -> tensor<f32>
    %cst_30 = stablehlo.constant dense<1.200000e+01> : tensor<f32>
    %100 = stablehlo.divide %99, %cst_30 : tensor<f32>
    %101 = stablehlo.negate %100 : tensor<f32>
    %102 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}} %101 : tensor<f32>
    return %12, %17, %56, %61, %102, %6, %7, %11, %16, %12, %18, %27#1, %34, %36, %41, %17, %38, %42, %44, %46, %48, %51, %55, %60, %56, %62, %71#1, %78, %80, %85, %61, %82, %86, %88, %90, %92, %94, %96#1, %96#2, %98#1 : tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<f32>, tensor<2x6x1xi32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<2x6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x1xf32>, tensor<2x6x1xf32>, tensor<2x12x8xf32>, tensor<2x6x12xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<2x6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x1xf32>, tensor<2x6x1xf32>, tensor<2x12x8xf32>, tensor<2x6x12xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x8xf32>, tensor<2x6x11xf32>, tensor<2x6x1xf32>, tensor<2x6x1x1xi32>
  }
  func.func private @_where_2(%arg0: tensor<6x12xi1>, %arg1: tensor<2x6x12xf32>, %arg2: tensor<2x6x12xf32>) -> (tensor<2x6x12xf32>, tensor<2x6x12xi1>) {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [1, 2] : (tensor<6x12xi1>) -> tensor<2x6x12xi1>
    %1 = stablehlo.select %0, %arg1, %arg2 : tensor<2x6x12xi1>, tensor<2x6x12xf32>
    return %1, %0 : tensor<2x6x12xf32>, tensor<2x6x12xi1>
  }
  func.func private @log_softmax_3(%arg0: tensor<2x6x11xf32>) -> (tensor<2x6x11xf32>, tensor<2x6x11xf32>, tensor<2x6x1xf32>) {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.maximum across dimensions = [2] : (tensor<2x6x11xf32>, tensor<f32>) -> tensor<2x6xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<2x6xf32>
    %2 = stablehlo.maximum %1, %0 : tensor<2x6xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<2x6xf32>) -> tensor<2x6x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<2x6x1xf32>) -> tensor<2x6x11xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<2x6x11xf32>
    %6 = stablehlo.exponential %5 : tensor<2x6x11xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<2x6x11xf32>, tensor<f32>) -> tensor<2x6xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<2x6xf32>) -> tensor<2x6x1xf32>
    %9 = stablehlo.log %8 : tensor<2x6x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<2x6x1xf32>) -> tensor<2x6x11xf32>
    %11 = stablehlo.subtract %5, %10 : tensor<2x6x11xf32>
    return %11, %6, %8 : tensor<2x6x11xf32>, tensor<2x6x11xf32>, tensor<2x6x1xf32>
  }
  func.func private @take_along_axis_4(%arg0: tensor<2x6x11xf32>, %arg1: tensor<2x6x1xi32>) -> (tensor<2x6x1xf32>, tensor<2x6x1x1xi32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<2x6x1xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<2x6x1xi32>, tensor<2x6x1xi32>) -> tensor<2x6x1xi1>
    %c_0 = stablehlo.constant dense<11> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<2x6x1xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<2x6x1xi32>
    %4 = stablehlo.select %1, %3, %arg1 : tensor<2x6x1xi1>, tensor<2x6x1xi32>
    %5 = stablehlo.reshape %4 : (tensor<2x6x1xi32>) -> tensor<2x6x1x1xi32>
    %c_1 = stablehlo.constant dense<10> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<2x6x1x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<2x6x1x1xi32>, tensor<2x6x1x1xi32>) -> tensor<2x6x1x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [3] : (tensor<1xi32>) -> tensor<1x1x1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2, 3] : (tensor<1x1x1x1xi32>) -> tensor<2x6x1x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<2x6x1x1xi32>, tensor<2x6x1x1xi32>) -> tensor<2x6x1x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<2x6x1x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [3] : (tensor<2x6x1x1xi1>, tensor<i1>) -> tensor<2x6x1xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 3>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1, 1>}> : (tensor<2x6x11xf32>, tensor<2x6x1x1xi32>) -> tensor<2x6x1xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x6x1xf32>
    %15 = stablehlo.select %12, %13, %14 : tensor<2x6x1xi1>, tensor<2x6x1xf32>
    return %15, %5 : tensor<2x6x1xf32>, tensor<2x6x1x1xi32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<2xf32>, %arg1: tensor<f32>, %arg2: tensor<i32>) -> tensor<2xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2 : (tensor<2xf32>, tensor<1xf32>, tensor<i32>) -> tensor<2xf32>
    return %1 : tensor<2xf32>
  }
  func.func private @dynamic_update_index_in_dim_5(%arg0: tensor<2x2x6x1xi32>, %arg1: tensor<2x6x1xi32>, %arg2: tensor<i32>) -> tensor<2x2x6x1xi32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2, 3] : (tensor<2x6x1xi32>) -> tensor<1x2x6x1xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0, %c_1 : (tensor<2x2x6x1xi32>, tensor<1x2x6x1xi32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x6x1xi32>
    return %1 : tensor<2x2x6x1xi32>
  }
  func.func private @dynamic_update_index_in_dim_6(%arg0: tensor<2x2x6x8xf32>, %arg1: tensor<2x6x8xf32>, %arg2: tensor<i32>) -> tensor<2x2x6x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2, 3] : (tensor<2x6x8xf32>) -> tensor<1x2x6x8xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0, %c_1 : (tensor<2x2x6x8xf32>, tensor<1x2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x6x8xf32>
    return %1 : tensor<2x2x6x8xf32>
  }
  func.func private @dynamic_update_index_in_dim_7(%arg0: tensor<2xi32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<2xi32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2 : (tensor<2xi32>, tensor<1xi32>, tensor<i32>) -> tensor<2xi32>
    return %1 : tensor<2xi32>
  }
  func.func private @dynamic_update_index_in_dim_8(%arg0: tensor<2x2x12x8xf32>, %arg1: tensor<2x12x8xf32>, %arg2: tensor<i32>) -> tensor<2x2x12x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2, 3] : (tensor<2x12x8xf32>) -> tensor<1x2x12x8xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0, %c_1 : (tensor<2x2x12x8xf32>, tensor<1x2x12x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x12x8xf32>
    return %1 : tensor<2x2x12x8xf32>
  }
  func.func private @dynamic_update_index_in_dim_9(%arg0: tensor<2x2x6x12xi1>, %arg1: tensor<2x6x12xi1>, %arg2: tensor<i32>) -> tensor<2x2x6x12xi1> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2, 3] : (tensor<2x6x12xi1>) -> tensor<1x2x6x12xi1>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0, %c_1 : (tensor<2x2x6x12xi1>, tensor<1x2x6x12xi1>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x6x12xi1>
    return %1 : tensor<2x2x6x12xi1>
  }
  func.func private @dynamic_update_index_in_dim_10(%arg0: tensor<2x2x6x12xf32>, %arg1: tensor<2x6x12xf32>, %arg2: tensor<i32>) -> tensor<2x2x6x12xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2, 3] : (tensor<2x6x12xf32>) -> tensor<1x2x6x12xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0, %c_1 : (tensor<2x2x6x12xf32>, tensor<1x2x6x12xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x6x12xf32>
    return %1 : tensor<2x2x6x12xf32>
  }
  func.func private @dynamic_update_index_in_dim_11(%arg0: tensor<2x2x6x1xf32>, %arg1: tensor<2x6x1xf32>, %arg2: tensor<i32>) -> tensor<2x2x6x1xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2, 3] : (tensor<2x6x1xf32>) -> tensor<1x2x6x1xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0, %c_1 : (tensor<2x2x6x1xf32>, tensor<1x2x6x1xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x6x1xf32>
    return %1 : tensor<2x2x6x1xf32>
  }
  func.func private @dynamic_update_index_in_dim_12(%arg0: tensor<2x2x6x11xf32>, %arg1: tensor<2x6x11xf32>, %arg2: tensor<i32>) -> tensor<2x2x6x11xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2, 3] : (tensor<2x6x11xf32>) -> tensor<1x2x6x11xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0, %c_1 : (tensor<2x2x6x11xf32>, tensor<1x2x6x11xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x6x11xf32>
    return %1 : tensor<2x2x6x11xf32>
  }
  func.func private @dynamic_update_index_in_dim_13(%arg0: tensor<2x2x6x1x1xi32>, %arg1: tensor<2x6x1x1xi32>, %arg2: tensor<i32>) -> tensor<2x2x6x1x1xi32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1, 2, 3, 4] : (tensor<2x6x1x1xi32>) -> tensor<1x2x6x1x1xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2, %c, %c_0, %c_1, %c_2 : (tensor<2x2x6x1x1xi32>, tensor<1x2x6x1x1xi32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x6x1x1xi32>
    return %1 : tensor<2x2x6x1x1xi32>
  }
  func.func private @dynamic_index_in_dim_14(%arg0: tensor<2xf32>, %arg1: tensor<i32>) -> tensor<f32> {
    %0 = stablehlo.dynamic_slice %arg0, %arg1, sizes = [1] : (tensor<2xf32>, tensor<i32>) -> tensor<1xf32>
    %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @dynamic_index_in_dim_15(%arg0: tensor<2x2x6x1xi32>, %arg1: tensor<i32>) -> tensor<2x6x1xi32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, %c_1, sizes = [1, 2, 6, 1] : (tensor<2x2x6x1xi32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x6x1xi32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x6x1xi32>) -> tensor<2x6x1xi32>
    return %1 : tensor<2x6x1xi32>
  }
  func.func private @dynamic_index_in_dim_16(%arg0: tensor<2x2x6x8xf32>, %arg1: tensor<i32>) -> tensor<2x6x8xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, %c_1, sizes = [1, 2, 6, 8] : (tensor<2x2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x6x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x6x8xf32>) -> tensor<2x6x8xf32>
    return %1 : tensor<2x6x8xf32>
  }
  func.func private @dynamic_index_in_dim_17(%arg0: tensor<2x2x12x8xf32>, %arg1: tensor<i32>) -> tensor<2x12x8xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, %c_1, sizes = [1, 2, 12, 8] : (tensor<2x2x12x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x12x8xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x12x8xf32>) -> tensor<2x12x8xf32>
    return %1 : tensor<2x12x8xf32>
  }
  func.func private @dynamic_index_in_dim_18(%arg0: tensor<2x2x6x12xi1>, %arg1: tensor<i32>) -> tensor<2x6x12xi1> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, %c_1, sizes = [1, 2, 6, 12] : (tensor<2x2x6x12xi1>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x6x12xi1>
    %1 = stablehlo.reshape %0 : (tensor<1x2x6x12xi1>) -> tensor<2x6x12xi1>
    return %1 : tensor<2x6x12xi1>
  }
  func.func private @dynamic_index_in_dim_19(%arg0: tensor<2x2x6x12xf32>, %arg1: tensor<i32>) -> tensor<2x6x12xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, %c_1, sizes = [1, 2, 6, 12] : (tensor<2x2x6x12xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x6x12xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x6x12xf32>) -> tensor<2x6x12xf32>
    return %1 : tensor<2x6x12xf32>
  }
  func.func private @dynamic_index_in_dim_20(%arg0: tensor<2x2x6x1xf32>, %arg1: tensor<i32>) -> tensor<2x6x1xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, %c_1, sizes = [1, 2, 6, 1] : (tensor<2x2x6x1xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x6x1xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x6x1xf32>) -> tensor<2x6x1xf32>
    return %1 : tensor<2x6x1xf32>
  }
  func.func private @dynamic_index_in_dim_21(%arg0: tensor<2x2x6x11xf32>, %arg1: tensor<i32>) -> tensor<2x6x11xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, %c_1, sizes = [1, 2, 6, 11] : (tensor<2x2x6x11xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x6x11xf32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x6x11xf32>) -> tensor<2x6x11xf32>
    return %1 : tensor<2x6x11xf32>
  }
  func.func private @dynamic_index_in_dim_22(%arg0: tensor<2x2x6x1x1xi32>, %arg1: tensor<i32>) -> tensor<2x6x1x1xi32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %arg1, %c, %c_0, %c_1, %c_2, sizes = [1, 2, 6, 1, 1] : (tensor<2x2x6x1x1xi32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x2x6x1x1xi32>
    %1 = stablehlo.reshape %0 : (tensor<1x2x6x1x1xi32>) -> tensor<2x6x1x1xi32>
    return %1 : tensor<2x6x1x1xi32>
  }
  func.func private @closed_call_23(%arg0: tensor<8x8xf32>, %arg1: tensor<8x8xf32>, %arg2: tensor<8x8xf32>, %arg3: tensor<2x6x12xf32>, %arg4: tensor<8x8xf32>, %arg5: tensor<8x8xf32>, %arg6: tensor<8x8xf32>, %arg7: tensor<8x8xf32>, %arg8: tensor<8x8xf32>, %arg9: tensor<8x8xf32>, %arg10: tensor<2x6x12xf32>, %arg11: tensor<8x8xf32>, %arg12: tensor<8x8xf32>, %arg13: tensor<8x8xf32>, %arg14: tensor<8x11xf32>, %arg15: tensor<11x8xf32>, %arg16: tensor<8x8xf32>, %arg17: tensor<8x8xf32>, %arg18: tensor<8x8xf32>, %arg19: tensor<8x8xf32>, %arg20: tensor<8x8xf32>, %arg21: tensor<8x8xf32>, %arg22: tensor<8x8xf32>, %arg23: tensor<8x8xf32>, %arg24: tensor<8x8xf32>, %arg25: tensor<8x8xf32>, %arg26: tensor<8x8xf32>, %arg27: tensor<8x8xf32>, %arg28: tensor<8x11xf32>, %arg29: tensor<2x12x8xf32>, %arg30: tensor<2x12x8xf32>, %arg31: tensor<2x12x8xf32>, %arg32: tensor<2x12x8xf32>, %arg33: tensor<f32>, %arg34: tensor<2x6x1xi32>, %arg35: tensor<2x6x8xf32>, %arg36: tensor<i32>, %arg37: tensor<i32>, %arg38: tensor<2x12x8xf32>, %arg39: tensor<2x6x8xf32>, %arg40: tensor<2x6x12xi1>, %arg41: tensor<2x6x12xf32>, %arg42: tensor<2x6x1xf32>, %arg43: tensor<2x6x1xf32>, %arg44: tensor<2x12x8xf32>, %arg45: tensor<2x6x12xf32>, %arg46: tensor<2x6x8xf32>, %arg47: tensor<2x6x8xf32>, %arg48: tensor<2x6x8xf32>, %arg49: tensor<2x6x8xf32>, %arg50: tensor<2x6x8xf32>, %arg51: tensor<i32>, %arg52: tensor<i32>, %arg53: tensor<2x12x8xf32>, %arg54: tensor<2x6x8xf32>, %arg55: tensor<2x6x12xi1>, %arg56: tensor<2x6x12xf32>, %arg57: tensor<2x6x1xf32>, %arg58: tensor<2x6x1xf32>, %arg59: tensor<2x12x8xf32>, %arg60: tensor<2x6x12xf32>, %arg61: tensor<2x6x8xf32>, %arg62: tensor<2x6x8xf32>, %arg63: tensor<2x6x8xf32>, %arg64: tensor<2x6x8xf32>, %arg65: tensor<2x6x8xf32>, %arg66: tensor<2x6x11xf32>, %arg67: tensor<2x6x1xf32>, %arg68: tensor<2x6x1x1xi32>) -> (tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>) {
    %0 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}} %arg33 : tensor<f32>
    %1 = stablehlo.negate %0 : tensor<f32>
    %cst = stablehlo.constant dense<1.200000e+01> : tensor<f32>
    %2 = stablehlo.divide %1, %cst : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<2x6x1xf32>
    %4 = call @take_along_axis_24(%arg68, %3) : (tensor<2x6x1x1xi32>, tensor<2x6x1xf32>) -> tensor<2x6x11xf32>
    %5 = call @log_softmax_25(%arg66, %arg67, %4) : (tensor<2x6x11xf32>, tensor<2x6x1xf32>, tensor<2x6x11xf32>) -> tensor<2x6x11xf32>
    %6 = stablehlo.dot_general %5, %arg65, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x11xf32>, tensor<2x6x8xf32>) -> tensor<11x8xf32>
    %7 = stablehlo.transpose %6, dims = [1, 0] : (tensor<11x8xf32>) -> tensor<8x11xf32>
    %8 = stablehlo.add %arg28, %7 : tensor<8x11xf32>
    %9 = stablehlo.dot_general %5, %arg14, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x11xf32>, tensor<8x11xf32>) -> tensor<2x6x8xf32>
    %10 = stablehlo.dot_general %9, %arg63, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %11 = stablehlo.transpose %10, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %12 = stablehlo.add %arg27, %11 : tensor<8x8xf32>
    %13 = stablehlo.dot_general %9, %arg13, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %14 = stablehlo.multiply %13, %arg64 : tensor<2x6x8xf32>
    %15 = stablehlo.multiply %14, %arg63 : tensor<2x6x8xf32>
    %16 = stablehlo.add %14, %15 : tensor<2x6x8xf32>
    %17 = stablehlo.dot_general %16, %arg62, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %18 = stablehlo.transpose %17, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %19 = stablehlo.add %arg26, %18 : tensor<8x8xf32>
    %20 = stablehlo.dot_general %16, %arg12, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %21 = stablehlo.add %9, %20 : tensor<2x6x8xf32>
    %22 = stablehlo.dot_general %21, %arg61, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %23 = stablehlo.transpose %22, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %24 = stablehlo.add %arg25, %23 : tensor<8x8xf32>
    %25 = stablehlo.dot_general %21, %arg11, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %26 = stablehlo.dot_general %25, %arg60, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x12xf32>) -> tensor<2x8x12xf32>
    %27 = stablehlo.transpose %26, dims = [0, 2, 1] : (tensor<2x8x12xf32>) -> tensor<2x12x8xf32>
    %28 = stablehlo.add %arg32, %27 : tensor<2x12x8xf32>
    %29 = stablehlo.dot_general %25, %arg59, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x12x8xf32>) -> tensor<2x6x12xf32>
    %30 = stablehlo.broadcast_in_dim %arg58, dims = [0, 1, 2] : (tensor<2x6x1xf32>) -> tensor<2x6x12xf32>
    %31 = stablehlo.multiply %29, %30 : tensor<2x6x12xf32>
    %32 = stablehlo.multiply %31, %arg56 : tensor<2x6x12xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %33 = stablehlo.reduce(%32 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<2x6x12xf32>, tensor<f32>) -> tensor<2x6xf32>
    %34 = stablehlo.reshape %33 : (tensor<2x6xf32>) -> tensor<2x6x1xf32>
    %35 = stablehlo.negate %34 : tensor<2x6x1xf32>
    %36 = stablehlo.broadcast_in_dim %arg57, dims = [0, 1, 2] : (tensor<2x6x1xf32>) -> tensor<2x6x12xf32>
    %37 = stablehlo.divide %29, %36 : tensor<2x6x12xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %38 = stablehlo.reduce(%35 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<2x6x1xf32>, tensor<f32>) -> tensor<2x6xf32>
    %39 = stablehlo.broadcast_in_dim %38, dims = [0, 1] : (tensor<2x6xf32>) -> tensor<2x6x12xf32>
    %40 = stablehlo.add %37, %39 : tensor<2x6x12xf32>
    %41 = stablehlo.multiply %40, %arg56 : tensor<2x6x12xf32>
    %42 = call @_where_26(%arg55, %arg10, %41) : (tensor<2x6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x12xf32>) -> tensor<2x6x12xf32>
    %cst_2 = stablehlo.constant dense<2.82842708> : tensor<f32>
    %43 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<2x6x12xf32>
    %44 = stablehlo.divide %42, %43 : tensor<2x6x12xf32>
    %45 = stablehlo.dot_general %44, %arg54, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x12xf32>, tensor<2x6x8xf32>) -> tensor<2x12x8xf32>
    %46 = stablehlo.add %arg31, %45 : tensor<2x12x8xf32>
    %47 = stablehlo.dot_general %44, %arg53, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x12xf32>, tensor<2x12x8xf32>) -> tensor<2x6x8xf32>
    %48 = stablehlo.dot_general %47, %arg50, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %49 = stablehlo.transpose %48, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %50 = stablehlo.add %arg24, %49 : tensor<8x8xf32>
    %51 = stablehlo.dot_general %47, %arg9, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %52 = stablehlo.add %21, %51 : tensor<2x6x8xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %53 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<2x6x8xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %54 = stablehlo.dynamic_update_slice %28, %53, %c, %arg52, %c_4 : (tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x12x8xf32>
    %c_5 = stablehlo.constant dense<0> : tensor<i32>
    %c_6 = stablehlo.constant dense<0> : tensor<i32>
    %55 = stablehlo.dynamic_slice %28, %c_5, %arg52, %c_6, sizes = [2, 6, 8] : (tensor<2x12x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x6x8xf32>
    %56 = stablehlo.dot_general %55, %arg50, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %57 = stablehlo.transpose %56, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %58 = stablehlo.add %arg23, %57 : tensor<8x8xf32>
    %59 = stablehlo.dot_general %55, %arg8, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %60 = stablehlo.add %52, %59 : tensor<2x6x8xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %61 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<2x6x8xf32>
    %c_8 = stablehlo.constant dense<0> : tensor<i32>
    %c_9 = stablehlo.constant dense<0> : tensor<i32>
    %62 = stablehlo.dynamic_update_slice %46, %61, %c_8, %arg51, %c_9 : (tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x12x8xf32>
    %c_10 = stablehlo.constant dense<0> : tensor<i32>
    %c_11 = stablehlo.constant dense<0> : tensor<i32>
    %63 = stablehlo.dynamic_slice %46, %c_10, %arg51, %c_11, sizes = [2, 6, 8] : (tensor<2x12x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x6x8xf32>
    %64 = stablehlo.dot_general %63, %arg50, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %65 = stablehlo.transpose %64, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %66 = stablehlo.add %arg22, %65 : tensor<8x8xf32>
    %67 = stablehlo.dot_general %63, %arg7, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %68 = stablehlo.add %60, %67 : tensor<2x6x8xf32>
    %69 = stablehlo.optimization_barrier {jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}} %68 : tensor<2x6x8xf32>
    %70 = stablehlo.dot_general %69, %arg48, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %71 = stablehlo.transpose %70, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %72 = stablehlo.add %arg21, %71 : tensor<8x8xf32>
    %73 = stablehlo.dot_general %69, %arg6, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %74 = stablehlo.multiply %73, %arg49 : tensor<2x6x8xf32>
    %75 = stablehlo.multiply %74, %arg48 : tensor<2x6x8xf32>
    %76 = stablehlo.add %74, %75 : tensor<2x6x8xf32>
    %77 = stablehlo.dot_general %76, %arg47, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %78 = stablehlo.transpose %77, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %79 = stablehlo.add %arg20, %78 : tensor<8x8xf32>
    %80 = stablehlo.dot_general %76, %arg5, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %81 = stablehlo.add %69, %80 : tensor<2x6x8xf32>
    %82 = stablehlo.dot_general %81, %arg46, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %83 = stablehlo.transpose %82, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %84 = stablehlo.add %arg19, %83 : tensor<8x8xf32>
    %85 = stablehlo.dot_general %81, %arg4, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %86 = stablehlo.dot_general %85, %arg45, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x12xf32>) -> tensor<2x8x12xf32>
    %87 = stablehlo.transpose %86, dims = [0, 2, 1] : (tensor<2x8x12xf32>) -> tensor<2x12x8xf32>
    %88 = stablehlo.add %arg30, %87 : tensor<2x12x8xf32>
    %89 = stablehlo.dot_general %85, %arg44, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x12x8xf32>) -> tensor<2x6x12xf32>
    %90 = stablehlo.broadcast_in_dim %arg43, dims = [0, 1, 2] : (tensor<2x6x1xf32>) -> tensor<2x6x12xf32>
    %91 = stablehlo.multiply %89, %90 : tensor<2x6x12xf32>
    %92 = stablehlo.multiply %91, %arg41 : tensor<2x6x12xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %93 = stablehlo.reduce(%92 init: %cst_12) applies stablehlo.add across dimensions = [2] : (tensor<2x6x12xf32>, tensor<f32>) -> tensor<2x6xf32>
    %94 = stablehlo.reshape %93 : (tensor<2x6xf32>) -> tensor<2x6x1xf32>
    %95 = stablehlo.negate %94 : tensor<2x6x1xf32>
    %96 = stablehlo.broadcast_in_dim %arg42, dims = [0, 1, 2] : (tensor<2x6x1xf32>) -> tensor<2x6x12xf32>
    %97 = stablehlo.divide %89, %96 : tensor<2x6x12xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %98 = stablehlo.reduce(%95 init: %cst_13) applies stablehlo.add across dimensions = [2] : (tensor<2x6x1xf32>, tensor<f32>) -> tensor<2x6xf32>
    %99 = stablehlo.broadcast_in_dim %98, dims = [0, 1] : (tensor<2x6xf32>) -> tensor<2x6x12xf32>
    %100 = stablehlo.add %97, %99 : tensor<2x6x12xf32>
    %101 = stablehlo.multiply %100, %arg41 : tensor<2x6x12xf32>
    %102 = call @_where_26(%arg40, %arg3, %101) : (tensor<2x6x12xi1>, tensor<2x6x12xf32>, tensor<2x6x12xf32>) -> tensor<2x6x12xf32>
    %cst_14 = stablehlo.constant dense<2.82842708> : tensor<f32>
    %103 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<2x6x12xf32>
    %104 = stablehlo.divide %102, %103 : tensor<2x6x12xf32>
    %105 = stablehlo.dot_general %104, %arg39, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x12xf32>, tensor<2x6x8xf32>) -> tensor<2x12x8xf32>
    %106 = stablehlo.add %arg29, %105 : tensor<2x12x8xf32>
    %107 = stablehlo.dot_general %104, %arg38, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x12xf32>, tensor<2x12x8xf32>) -> tensor<2x6x8xf32>
    %108 = stablehlo.dot_general %107, %arg35, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %109 = stablehlo.transpose %108, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %110 = stablehlo.add %arg18, %109 : tensor<8x8xf32>
    %111 = stablehlo.dot_general %107, %arg2, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %112 = stablehlo.add %81, %111 : tensor<2x6x8xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %113 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<2x6x8xf32>
    %c_16 = stablehlo.constant dense<0> : tensor<i32>
    %c_17 = stablehlo.constant dense<0> : tensor<i32>
    %114 = stablehlo.dynamic_update_slice %88, %113, %c_16, %arg37, %c_17 : (tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x12x8xf32>
    %c_18 = stablehlo.constant dense<0> : tensor<i32>
    %c_19 = stablehlo.constant dense<0> : tensor<i32>
    %115 = stablehlo.dynamic_slice %88, %c_18, %arg37, %c_19, sizes = [2, 6, 8] : (tensor<2x12x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x6x8xf32>
    %116 = stablehlo.dot_general %115, %arg35, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %117 = stablehlo.transpose %116, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %118 = stablehlo.add %arg17, %117 : tensor<8x8xf32>
    %119 = stablehlo.dot_general %115, %arg1, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %120 = stablehlo.add %112, %119 : tensor<2x6x8xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %121 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<2x6x8xf32>
    %c_21 = stablehlo.constant dense<0> : tensor<i32>
    %c_22 = stablehlo.constant dense<0> : tensor<i32>
    %122 = stablehlo.dynamic_update_slice %106, %121, %c_21, %arg36, %c_22 : (tensor<2x12x8xf32>, tensor<2x6x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x12x8xf32>
    %c_23 = stablehlo.constant dense<0> : tensor<i32>
    %c_24 = stablehlo.constant dense<0> : tensor<i32>
    %123 = stablehlo.dynamic_slice %106, %c_23, %arg36, %c_24, sizes = [2, 6, 8] : (tensor<2x12x8xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x6x8xf32>
    %124 = stablehlo.dot_general %123, %arg35, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<8x8xf32>
    %125 = stablehlo.transpose %124, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %126 = stablehlo.add %arg16, %125 : tensor<8x8xf32>
    %127 = stablehlo.dot_general %123, %arg0, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x6x8xf32>, tensor<8x8xf32>) -> tensor<2x6x8xf32>
    %128 = stablehlo.add %120, %127 : tensor<2x6x8xf32>
    %cst_25 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %129 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<11x8xf32>
    %130 = "stablehlo.scatter"(%129, %arg34, %128) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg69: tensor<f32>, %arg70: tensor<f32>):
      %132 = stablehlo.add %arg69, %arg70 : tensor<f32>
      stablehlo.return %132 : tensor<f32>
    }) : (tensor<11x8xf32>, tensor<2x6x1xi32>, tensor<2x6x8xf32>) -> tensor<11x8xf32>
    %131 = stablehlo.add %arg15, %130 : tensor<11x8xf32>
    return %131, %126, %118, %110, %84, %79, %72, %66, %58, %50, %24, %19, %12, %8, %122, %114, %62, %54 : tensor<11x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x11xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>, tensor<2x12x8xf32>
  }
  func.func private @take_along_axis_24(%arg0: tensor<2x6x1x1xi32>, %arg1: tensor<2x6x1xf32>) -> tensor<2x6x11xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x6x11xf32>
    %1 = "stablehlo.scatter"(%0, %arg0, %arg1) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [2], index_vector_dim = 3>, unique_indices = false}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<2x6x11xf32>, tensor<2x6x1x1xi32>, tensor<2x6x1xf32>) -> tensor<2x6x11xf32>
    return %1 : tensor<2x6x11xf32>
  }
  func.func private @log_softmax_25(%arg0: tensor<2x6x11xf32>, %arg1: tensor<2x6x1xf32>, %arg2: tensor<2x6x11xf32>) -> tensor<2x6x11xf32> {
    %0 = stablehlo.negate %arg2 : tensor<2x6x11xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<2x6x11xf32>, tensor<f32>) -> tensor<2x6xf32>
    %2 = stablehlo.reshape %1 : (tensor<2x6xf32>) -> tensor<2x6x1xf32>
    %3 = stablehlo.divide %2, %arg1 : tensor<2x6x1xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<2x6x1xf32>, tensor<f32>) -> tensor<2x6xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<2x6xf32>) -> tensor<2x6x11xf32>
    %6 = stablehlo.multiply %5, %arg0 : tensor<2x6x11xf32>
    %7 = stablehlo.add %arg2, %6 : tensor<2x6x11xf32>
    return %7 : tensor<2x6x11xf32>
  }
  func.func private @_where_26(%arg0: tensor<2x6x12xi1>, %arg1: tensor<2x6x12xf32>, %arg2: tensor<2x6x12xf32>) -> tensor<2x6x12xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x6x12xf32>
    %1 = stablehlo.select %arg0, %arg2, %0 : tensor<2x6x12xi1>, tensor<2x6x12xf32>
    return %1 : tensor<2x6x12xf32>
  }
  func.func private @dynamic_update_index_in_dim_27(%arg0: tensor<2xf32>, %arg1: tensor<f32>, %arg2: tensor<i32>) -> tensor<2xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2 : (tensor<2xf32>, tensor<1xf32>, tensor<i32>) -> tensor<2xf32>
    return %1 : tensor<2xf32>
  }
}
