// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir -p inline-calls,find-microbatch-loop,propagate-shardings | filecheck %s

// The user sharded the batch of the GPT over two devices and said nothing else. The activations and their gradients are
// sharded over the batch, at every mark too; the sums of weight gradients, carried by the loop, are on both devices.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while({{.*}} attributes {jaxpp.microbatch_loop = {{{.*}}}}{{$}}
// CHECK-NOT:     sdy.constant
// CHECK-NOT:     sdy.reshard
// CHECK:         "stablehlo.gather"({{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}, {}]>]>} : (tensor<16x8xf32>
// CHECK:         jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}, {}]>]>}
// CHECK:         jaxpp.boundary = {name = "", phase = "forward", stage = 1 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}, {}]>]>}
// CHECK:         stablehlo.dot_general {{.*}} contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<2x4x16xf32>, tensor<2x4x8xf32>) -> tensor<16x8xf32>
// CHECK:         jaxpp.boundary = {name = "", phase = "backward", stage = 1 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}, {}]>]>}
// CHECK:         jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}, {}]>]>}
