// RUN: jaxpp-opt %s --split-input-file -p once-per-run | filecheck %s
// RUN: jaxpp-opt %s --split-input-file -p "once-per-run{gather_weights=ahead}" | filecheck %s --check-prefix=AHEAD

// The weight of stage 0 is gathered for both forwards, and again for its backward, as stage 1 runs in between on the same
// mesh. A task of the stage that needs no weight ends no run. Rows of a stack are cut out and gathered at once.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W:[^ :]*]]: tensor<4x4xf32> {{{[^}]*}}{"data"}
// CHECK:         %[[G:.*]] = call @gather_0(%[[W]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[A:.*]] = call @forward_0(%[[G]], %{{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64
// CHECK-NEXT:    call @weight_grad_0(
// CHECK-NEXT:    %[[B:.*]] = call @forward_0(%[[G]], %[[A]])
// CHECK-NEXT:    %[[H:.*]] = call @gather_1(%[[S:.*]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[C:.*]] = call @forward_1(%[[H]], %[[B]])
// CHECK-NEXT:    %[[I:.*]] = call @gather_0(%[[W]])
// CHECK-NEXT:    %[[D:.*]] = call @input_grad_0(%[[I]], %[[C]])
// CHECK-NEXT:    return %[[D]]
// CHECK-LABEL: func.func private @gather_0(
// CHECK-SAME:      %[[W:[^ :]*]]: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
// CHECK-SAME:      -> (tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) attributes {jaxpp.kind = "gather"}
// CHECK-NEXT:    %[[G:.*]] = sdy.sharding_constraint %[[W]] <@mesh, [{}, {}]> : tensor<4x4xf32>
// CHECK-NEXT:    return %[[G]]
// CHECK-LABEL: func.func private @gather_1(
// CHECK-SAME:      %[[S:[^ :]*]]: tensor<8x4xf32>
// CHECK-NEXT:    %[[ROWS:.*]] = stablehlo.slice %[[S]] [4:8, 0:4] {{.*}}
// CHECK-NEXT:    sdy.sharding_constraint %[[ROWS]] <@mesh, [{}, {}]>

// Ahead, the forward before a run gathers for it: its last result.

// AHEAD-LABEL: func.func public @main(
// AHEAD:         %[[G:.*]] = call @gather_0(
// AHEAD-NEXT:    call @forward_0(%[[G]],
// AHEAD-NEXT:    call @weight_grad_0(
// AHEAD-NEXT:    %[[B:.*]]:2 = call @forward_0_gather_1(%[[G]], %{{.*}}, %{{.*}})
// AHEAD-NEXT:    %[[C:.*]]:2 = call @forward_1_gather_0(%[[B]]#1, %[[B]]#0, %{{.*}})
// AHEAD-NEXT:    %[[D:.*]] = call @input_grad_0(%[[C]]#1, %[[C]]#0)
// AHEAD-NEXT:    return %[[D]]
// AHEAD-LABEL: func.func private @forward_0_gather_1(
// AHEAD-SAME:      -> (tensor<4x4xf32>, tensor<4x4xf32> {jaxpp.per_run, sdy.sharding = {{.*}}}) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// AHEAD:         %[[Y:.*]] = stablehlo.dot_general
// AHEAD:         %[[H:.*]] = sdy.sharding_constraint
// AHEAD-NEXT:    return %[[Y]], %[[H]]
module attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%w: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %s: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"data"}]>}, %x: tensor<4x4xf32>) -> tensor<4x4xf32> {
    %g = sdy.sharding_constraint %w <@mesh, [{}, {}]> {jaxpp.per_run} : tensor<4x4xf32>
    %rows = stablehlo.slice %s [4:8, 0:4] {jaxpp.per_run, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"data"}]>]>} : (tensor<8x4xf32>) -> tensor<4x4xf32>
    %h = sdy.sharding_constraint %rows <@mesh, [{}, {}]> {jaxpp.per_run} : tensor<4x4xf32>
    %a = call @forward_0(%g, %x) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %n = call @weight_grad_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = call @forward_0(%g, %a) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %c = call @forward_1(%h, %b) {jaxpp.mesh = 0 : i64, jaxpp.stage = 1 : i64, jaxpp.microbatch = 1 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %d = call @input_grad_0(%g, %c) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %d : tensor<4x4xf32>
  }
  func.func private @forward_0(%w: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %y : tensor<4x4xf32>
  }
  func.func private @forward_1(%w: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %y : tensor<4x4xf32>
  }
  func.func private @input_grad_0(%w: tensor<4x4xf32>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "input_grad", jaxpp.stage = 0 : i64} {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %y : tensor<4x4xf32>
  }
  func.func private @weight_grad_0(%x: tensor<4x4xf32>) -> tensor<4x4xf32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 0 : i64} {
    %y = stablehlo.negate %x : tensor<4x4xf32>
    return %y : tensor<4x4xf32>
  }
}
