// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir --pipeline mpmd --stop-after unroll-steps | jaxpp-opt -p export-shardy-mpmd --verify-each | filecheck %s

// A GPT of two stages on meshes of two devices. The output of a stage is transferred once, right before the next stage.

// CHECK:       module @jit_train_step attributes {
// CHECK-NOT:     jaxpp.meshes
// CHECK:         sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      !mpmd.mesh_tensor<"m0", tensor<16x8xf32>, sharding=<@mesh, [{}, {}]>> {jax.buffer_donor = true}
// CHECK-SAME:      topology = #mpmd.topology<<"m0" : <["mpmd"=1, "data"=2]>>, <"m1" : <["mpmd"=1, "data"=2]>>>
// CHECK:         %[[F:.*]]:14 = mpmd.fragment_call<mesh="m0", origin=["stage_0"]> @forward_0({{.*}}) {call_counter = 0 : ui32, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK:         %[[T:.*]] = mpmd.transfer %[[F]]#12
// CHECK-NEXT:    mpmd.fragment_call<mesh="m1", origin=["stage_1"]> @forward_1(%[[T]],
// CHECK:         mpmd.fragment_call<mesh="m1", origin=["stage_1"(1)]> @backward_1(
// CHECK:       func.func private @forward_0({{.*}}mesh_shape = #sdy.mesh<["mpmd"=1, "data"=2]>
