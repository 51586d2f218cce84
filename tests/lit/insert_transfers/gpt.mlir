// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir -p inline-calls,find-microbatch-loop,propagate-shardings,assign-stages,place-residuals,outline-stages,unroll-microbatches,infer-placement,insert-transfers | filecheck %s

// The step of a GPT on two meshes of two devices. Per microbatch one activation goes from mesh 0 to mesh 1, and two
// gradients come back: that of the activation, sharded over the batch, and that of the tied embedding, which is on both
// devices. After the last microbatch come the scalars of the global norm, and the new embedding. The microbatch index is
// made on each mesh. Two forwards of mesh 0 come before its first recv: sends don't wait.

// CHECK-NOT:   @main
// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      tensor<16x8xf32> {jax.buffer_donor = true, jaxpp.number = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
// CHECK-SAME:      %[[BATCH:[^:]*]]: tensor<4x2x5xi32> {jaxpp.number = 32 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}, {}]>})
// CHECK:         %[[T0:.*]] = stablehlo.create_token
// CHECK:         %[[I0:.*]] = stablehlo.constant dense<0> : tensor<i32>
// CHECK-NEXT:    %[[F0:.*]]:14 = call @forward_0(%[[BATCH]], %[[I0]],
// CHECK-NEXT:    %[[T1:.*]] = "stablehlo.send"(%[[F0]]#13, %[[T0]]) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<{{\[\[}}0, 1]]>
// CHECK-NEXT:    stablehlo.constant dense<1> : tensor<i32>
// CHECK-NEXT:    %[[F1:.*]]:14 = call @forward_0(
// CHECK-NEXT:    %[[T2:.*]] = "stablehlo.send"(%[[F1]]#13, %[[T1]])
// CHECK-NEXT:    %[[R1:.*]]:2 = "stablehlo.recv"(%[[T2]]) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<{{\[\[}}1, 0]]>
// CHECK-SAME:        {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}, {}]>, <@mesh, []>]>}
// CHECK-NEXT:    %[[R2:.*]]:2 = "stablehlo.recv"(%[[R1]]#1) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>
// CHECK-SAME:        {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>, <@mesh, []>]>}
// CHECK-NEXT:    call @backward_0(%[[BATCH]], %[[I0]], %[[F0]]#1, {{.*}}, %[[R1]]#0, {{.*}}, %[[R2]]#0,
// CHECK:         call @after_0(
// CHECK-NEXT:    "stablehlo.send"({{.*}} (tensor<f32>, !stablehlo.token)
// CHECK:         "stablehlo.recv"({{.*}} -> (tensor<f32>, !stablehlo.token)
// CHECK:         call @after_0_level_3(
// CHECK:         "stablehlo.send"({{.*}} (tensor<16x8xf32>, !stablehlo.token)
// CHECK:         return
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      {jaxpp.number = 32 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}, {}]>})
// CHECK:         %[[R:.*]]:2 = "stablehlo.recv"({{.*}}) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>
// CHECK-SAME:        {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}, {}]>, <@mesh, []>]>}
// CHECK-NEXT:    %[[F:.*]]:14 = call @forward_1(%[[R]]#0,
// CHECK-NEXT:    stablehlo.constant dense<0> : tensor<i32>
// CHECK-NEXT:    %[[B:.*]]:7 = call @backward_1(
// CHECK-NEXT:    %[[S:.*]] = "stablehlo.send"(%[[B]]#0, %[[R]]#1) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>
// CHECK-NEXT:    "stablehlo.send"(%[[B]]#1, %[[S]]) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>
