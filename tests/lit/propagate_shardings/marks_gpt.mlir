// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir -p inline-calls,find-microbatch-loop,propagate-shardings | filecheck %s

// The stages of the GPT hand their activations on as they have them: no reshard stands before or behind a mark.

// CHECK-LABEL: func.func public @main(
// CHECK:         stablehlo.while({{.*}} attributes {jaxpp.microbatch_loop = {{{.*}}}}{{$}}
// CHECK-NOT:     sdy.sharding_constraint
// CHECK:         jaxpp.boundary = {name = "", phase = "forward", stage = 0 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}, {}]>]>}
// CHECK-NOT:     sdy.sharding_constraint
// CHECK:         jaxpp.boundary = {name = "", phase = "backward", stage = 0 : i64}, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}, {}]>]>}
// CHECK-NOT:     sdy.sharding_constraint
// CHECK:         stablehlo.return
