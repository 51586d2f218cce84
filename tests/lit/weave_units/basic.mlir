// RUN: jaxpp-opt %s --split-input-file -p weave-units | filecheck %s

// The second unit of the forward begins when the backward has made what its all-reduced product takes; the second one of
// the backward when the forward has. The gradient of a weight, which no unit waits for, comes last.

// CHECK-LABEL: func.func private @forward_0_backward_1(
// CHECK-SAME:      %[[W:.*]]: tensor<4x8xf32> {{{.*}}}, %[[V:.*]]: tensor<8x4xf32> {{{.*}}}, %[[X:.*]]: tensor<4x4xf32> {{{.*}}}, %[[DY:.*]]: tensor<4x4xf32> {{{.*}}})
// CHECK-NEXT:    %[[A0:.*]] = stablehlo.dot_general %[[X]], %[[W]]
// CHECK-NEXT:    %[[Y0:.*]] = stablehlo.dot_general %[[A0]], %[[V]]
// CHECK-NEXT:    %[[B0:.*]] = stablehlo.dot_general %[[DY]], %[[V]]
// CHECK-NEXT:    %[[F:.*]]:2 = stablehlo.optimization_barrier {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}]>, <@mesh, [{}, {"model"}]>]>} %[[Y0]], %[[B0]]
// CHECK-NEXT:    %[[D0:.*]] = stablehlo.dot_general %[[F]]#1, %[[W]]
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.dot_general %[[F]]#0, %[[W]]
// CHECK-NEXT:    %[[B:.*]]:2 = stablehlo.optimization_barrier {{{.*}}} %[[D0]], %[[A1]]
// CHECK-NEXT:    %[[Y1:.*]] = stablehlo.dot_general %[[B]]#1, %[[V]]
// CHECK-NEXT:    %[[B1:.*]] = stablehlo.dot_general %[[B]]#0, %[[V]]
// CHECK-NEXT:    %[[D1:.*]] = stablehlo.dot_general %[[B1]], %[[W]]
// CHECK-NEXT:    %[[DW:.*]] = stablehlo.dot_general %[[B]]#0, %[[B0]]
// CHECK-NEXT:    return %[[Y1]], %[[D1]], %[[DW]]
module @each_unit_waits_for_the_one_before_it attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "model"=2]>
  func.func public @main(%w: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %v: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %x: tensor<4x4xf32>, %dy: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x8xf32>) {
    %0:3 = call @forward_0_backward_1(%w, %v, %x, %dy) {jaxpp.mesh = 0 : i64, jaxpp.stage = array<i64: 0, 1>, jaxpp.microbatch = array<i64: 1, 0>} : (tensor<4x8xf32>, tensor<8x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x8xf32>)
    return %0#0, %0#1, %0#2 : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x8xf32>
  }
  func.func private @forward_0_backward_1(%w: tensor<4x8xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %v: tensor<8x4xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %x: tensor<4x4xf32> {jaxpp.task = 0 : i64}, %dy: tensor<4x4xf32> {jaxpp.task = 1 : i64}) -> (tensor<4x4xf32> {jaxpp.task = 0 : i64}, tensor<4x4xf32> {jaxpp.task = 1 : i64}, tensor<4x8xf32> {jaxpp.task = 1 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}) attributes {jaxpp.kind = "forward+backward"} {
    %a0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y0 = stablehlo.dot_general %a0, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %f0 = stablehlo.optimization_barrier {jaxpp.boundary} %y0 : tensor<4x4xf32>
    %a1 = stablehlo.dot_general %f0, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y1 = stablehlo.dot_general %a1, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %b0 = stablehlo.dot_general %dy, %v, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %d0 = stablehlo.dot_general %b0, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    %g0 = stablehlo.optimization_barrier {jaxpp.boundary} %d0 : tensor<4x4xf32>
    %b1 = stablehlo.dot_general %g0, %v, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %d1 = stablehlo.dot_general %b1, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    %dw = stablehlo.dot_general %g0, %b0, contracting_dims = [0] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    return %y1, %d1, %dw : tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x8xf32>
  }
}

// -----

// A mark with no product on one of its sides ends no unit: those next to the stage marks. Of a forward with three units
// and a backward with two, the units of the shorter one are spread over the longer one.

// CHECK-LABEL: func.func private @forward_0_backward_1(
// CHECK:         %[[A0:.*]] = stablehlo.dot_general %{{.*}}contracting_dims = [1] x [0]
// CHECK-NEXT:    %[[Y0:.*]] = stablehlo.dot_general %[[A0]],
// CHECK-NEXT:    %[[B0:.*]] = stablehlo.dot_general %{{.*}}contracting_dims = [1] x [1]
// CHECK-NEXT:    %[[F1:.*]]:2 = stablehlo.optimization_barrier {{{.*}}} %[[Y0]], %[[B0]]
// CHECK-NEXT:    stablehlo.dot_general %[[F1]]#1,
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.dot_general %[[F1]]#0,
// CHECK-NEXT:    %[[B:.*]]:2 = stablehlo.optimization_barrier {{{.*}}} %{{.*}}, %[[A1]]
// CHECK-NEXT:    %[[Y1:.*]] = stablehlo.dot_general %[[B]]#1,
// CHECK-NEXT:    %[[B1:.*]] = stablehlo.dot_general %[[B]]#0,
// CHECK-NEXT:    stablehlo.optimization_barrier {{{.*}}} %[[Y1]], %[[B1]]
// CHECK-NOT:     stablehlo.optimization_barrier
module @units_are_spread_evenly attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "model"=2]>
  func.func public @main(%w: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %v: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %x: tensor<4x4xf32>, %dy: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %0:2 = call @forward_0_backward_1(%w, %v, %x, %dy) {jaxpp.mesh = 0 : i64, jaxpp.stage = array<i64: 0, 1>, jaxpp.microbatch = array<i64: 1, 0>} : (tensor<4x8xf32>, tensor<8x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    return %0#0, %0#1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @forward_0_backward_1(%w: tensor<4x8xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %v: tensor<8x4xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %x: tensor<4x4xf32> {jaxpp.task = 0 : i64}, %dy: tensor<4x4xf32> {jaxpp.task = 1 : i64}) -> (tensor<4x4xf32> {jaxpp.task = 0 : i64}, tensor<4x4xf32> {jaxpp.task = 1 : i64}) attributes {jaxpp.kind = "forward+backward"} {
    %x0 = stablehlo.optimization_barrier {jaxpp.boundary} %x : tensor<4x4xf32>
    %a0 = stablehlo.dot_general %x0, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y0 = stablehlo.dot_general %a0, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %f0 = stablehlo.optimization_barrier {jaxpp.boundary} %y0 : tensor<4x4xf32>
    %a1 = stablehlo.dot_general %f0, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y1 = stablehlo.dot_general %a1, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %f1 = stablehlo.optimization_barrier {jaxpp.boundary} %y1 : tensor<4x4xf32>
    %a2 = stablehlo.dot_general %f1, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y2 = stablehlo.dot_general %a2, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %f2 = stablehlo.optimization_barrier {jaxpp.boundary} %y2 : tensor<4x4xf32>
    %g = stablehlo.optimization_barrier {jaxpp.boundary} %dy : tensor<4x4xf32>
    %b0 = stablehlo.dot_general %g, %v, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %d0 = stablehlo.dot_general %b0, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    %g0 = stablehlo.optimization_barrier {jaxpp.boundary} %d0 : tensor<4x4xf32>
    %b1 = stablehlo.dot_general %g0, %v, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %d1 = stablehlo.dot_general %b1, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    %g1 = stablehlo.optimization_barrier {jaxpp.boundary} %d1 : tensor<4x4xf32>
    return %f2, %g1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
}

// -----

// Where one takes what the other makes, there is nothing to weave. The marks go.

// CHECK-LABEL: func.func private @forward_0_backward_1(
// CHECK-NOT:     stablehlo.optimization_barrier
module @one_after_the_other attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "model"=2]>
  func.func public @main(%w: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %v: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %x: tensor<4x4xf32>, %dy: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %0:2 = call @forward_0_backward_1(%w, %v, %x, %dy) {jaxpp.mesh = 0 : i64, jaxpp.stage = array<i64: 0, 1>, jaxpp.microbatch = array<i64: 1, 0>} : (tensor<4x8xf32>, tensor<8x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    return %0#0, %0#1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @forward_0_backward_1(%w: tensor<4x8xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %v: tensor<8x4xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %x: tensor<4x4xf32> {jaxpp.task = 0 : i64}, %dy: tensor<4x4xf32> {jaxpp.task = 1 : i64}) -> (tensor<4x4xf32> {jaxpp.task = 0 : i64}, tensor<4x4xf32> {jaxpp.task = 1 : i64}) attributes {jaxpp.kind = "forward+backward"} {
    %a0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y0 = stablehlo.dot_general %a0, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %f0 = stablehlo.optimization_barrier {jaxpp.boundary} %y0 : tensor<4x4xf32>
    %a1 = stablehlo.dot_general %f0, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y1 = stablehlo.dot_general %a1, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %b0 = stablehlo.dot_general %y1, %v, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %d0 = stablehlo.dot_general %b0, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    %g0 = stablehlo.optimization_barrier {jaxpp.boundary} %d0 : tensor<4x4xf32>
    %b1 = stablehlo.dot_general %g0, %v, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %d1 = stablehlo.dot_general %b1, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    return %y1, %d1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
}

// -----

// Nor is there where no device waits for another: each has all rows of the weights.

// CHECK-LABEL: func.func private @forward_0_backward_1(
// CHECK-NOT:     stablehlo.optimization_barrier
module @without_collectives attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "model"=1, "data"=2]>
  func.func public @main(%w: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %v: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %x: tensor<4x4xf32>, %dy: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %0:2 = call @forward_0_backward_1(%w, %v, %x, %dy) {jaxpp.mesh = 0 : i64, jaxpp.stage = array<i64: 0, 1>, jaxpp.microbatch = array<i64: 1, 0>} : (tensor<4x8xf32>, tensor<8x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    return %0#0, %0#1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @forward_0_backward_1(%w: tensor<4x8xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %v: tensor<8x4xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %x: tensor<4x4xf32> {jaxpp.task = 0 : i64}, %dy: tensor<4x4xf32> {jaxpp.task = 1 : i64}) -> (tensor<4x4xf32> {jaxpp.task = 0 : i64}, tensor<4x4xf32> {jaxpp.task = 1 : i64}) attributes {jaxpp.kind = "forward+backward"} {
    %a0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y0 = stablehlo.dot_general %a0, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %f0 = stablehlo.optimization_barrier {jaxpp.boundary} %y0 : tensor<4x4xf32>
    %a1 = stablehlo.dot_general %f0, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y1 = stablehlo.dot_general %a1, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %b0 = stablehlo.dot_general %dy, %v, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %d0 = stablehlo.dot_general %b0, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    %g0 = stablehlo.optimization_barrier {jaxpp.boundary} %d0 : tensor<4x4xf32>
    %b1 = stablehlo.dot_general %g0, %v, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>}: (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %d1 = stablehlo.dot_general %b1, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    return %y1, %d1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
}

// -----

// The gradient of an all-to-all begins with one, which belongs to the unit before: both are under way beside a product.
// Of a unit without a collective the last product counts.

// CHECK-LABEL: func.func private @forward_0_backward_1(
// CHECK-SAME:      %[[X:[^ ]*]]: tensor<4x4xf32> {{[^)]*}}, %[[DY:[^ ]*]]: tensor<4x4xf32> {{[^)]*}}, %[[W:[^ ]*]]: tensor<4x4xf32>
// CHECK:         %[[A0:.*]] = stablehlo.dot_general %[[X]], %[[W]]
// CHECK-NEXT:    %[[S0:.*]] = sdy.sharding_constraint %[[A0]]
// CHECK-NEXT:    %[[B0:.*]] = stablehlo.dot_general %[[W]], %[[DY]]
// CHECK-NEXT:    %[[F:.*]]:2 = stablehlo.optimization_barrier {{.*}} %[[S0]], %[[B0]]
// CHECK-NEXT:    %[[R0:.*]] = sdy.sharding_constraint %[[F]]#1
// CHECK-NEXT:    %[[A1:.*]] = stablehlo.tanh %[[F]]#0
// CHECK-NEXT:    %[[B:.*]]:2 = stablehlo.optimization_barrier {{{.*}}} %[[R0]], %[[A1]]
// CHECK-NEXT:    stablehlo.dot_general %[[W]], %[[B]]#1
// CHECK-NEXT:    stablehlo.dot_general %[[B]]#0, %[[W]]
module @the_gradient_of_an_all_to_all attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "model"=2]>
  func.func public @main(%x: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %dy: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %w: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %0:2 = call @forward_0_backward_1(%x, %dy, %w) {jaxpp.mesh = 0 : i64, jaxpp.stage = array<i64: 0, 1>, jaxpp.microbatch = array<i64: 1, 0>} : (tensor<4x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    return %0#0, %0#1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @forward_0_backward_1(%x: tensor<4x4xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %dy: tensor<4x4xf32> {jaxpp.task = 1 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %w: tensor<4x4xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<4x4xf32> {jaxpp.task = 0 : i64}, tensor<4x4xf32> {jaxpp.task = 1 : i64}) attributes {jaxpp.kind = "forward+backward"} {
    %a0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"model"}, {}]>]>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %s0 = sdy.sharding_constraint %a0 <@mesh, [{}, {"model"}]> : tensor<4x4xf32>
    %f0 = stablehlo.optimization_barrier {jaxpp.boundary, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>} %s0 : tensor<4x4xf32>
    %a1 = stablehlo.tanh %f0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>} : tensor<4x4xf32>
    %y = stablehlo.dot_general %w, %a1, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %b0 = stablehlo.dot_general %w, %dy, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %g0 = stablehlo.optimization_barrier {jaxpp.boundary, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>} %b0 : tensor<4x4xf32>
    %r0 = sdy.sharding_constraint %g0 <@mesh, [{"model"}, {}]> : tensor<4x4xf32>
    %d = stablehlo.dot_general %r0, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"model"}, {}]>]>} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    return %y, %d : tensor<4x4xf32>, tensor<4x4xf32>
  }
}

// -----

// Of two collectives in a unit, one of which needs the other, the last one counts, whichever of them the results need.

// CHECK-LABEL: func.func private @forward_0_backward_1(
// CHECK:         %[[F:.*]]:2 = stablehlo.optimization_barrier
// CHECK:         %[[A1:.*]] = stablehlo.dot_general %[[F]]#0,
// CHECK-NEXT:    %[[Y1:.*]] = stablehlo.dot_general %[[A1]],
// CHECK-NEXT:    %[[A2:.*]] = stablehlo.dot_general %[[Y1]],
// CHECK-NEXT:    %[[B:.*]]:2 = stablehlo.optimization_barrier {{{.*}}} %{{.*}}, %[[A2]]
// CHECK-NEXT:    %[[Y2:.*]] = stablehlo.dot_general %[[B]]#1,
// CHECK-NEXT:    stablehlo.add %[[Y1]], %[[Y2]]
module @two_collectives_in_a_row attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "model"=2]>
  func.func public @main(%w: tensor<4x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %v: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %x: tensor<4x4xf32>, %dy: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %0:2 = call @forward_0_backward_1(%w, %v, %x, %dy) {jaxpp.mesh = 0 : i64, jaxpp.stage = array<i64: 0, 1>, jaxpp.microbatch = array<i64: 1, 0>} : (tensor<4x8xf32>, tensor<8x4xf32>, tensor<4x4xf32>, tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>)
    return %0#0, %0#1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
  func.func private @forward_0_backward_1(%w: tensor<4x8xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}]>}, %v: tensor<8x4xf32> {jaxpp.task = 0 : i64, sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}]>}, %x: tensor<4x4xf32> {jaxpp.task = 0 : i64}, %dy: tensor<4x4xf32> {jaxpp.task = 1 : i64}) -> (tensor<4x4xf32> {jaxpp.task = 0 : i64}, tensor<4x4xf32> {jaxpp.task = 1 : i64}) attributes {jaxpp.kind = "forward+backward"} {
    %a0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>} : (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y0 = stablehlo.dot_general %a0, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %f0 = stablehlo.optimization_barrier {jaxpp.boundary} %y0 : tensor<4x4xf32>
    %a1 = stablehlo.dot_general %f0, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>} : (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y1 = stablehlo.dot_general %a1, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %a2 = stablehlo.dot_general %y1, %w, contracting_dims = [1] x [0] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>} : (tensor<4x4xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    %y2 = stablehlo.dot_general %a2, %v, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
    %s = stablehlo.add %y1, %y2 : tensor<4x4xf32>
    %b0 = stablehlo.dot_general %dy, %v, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>} : (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %d0 = stablehlo.dot_general %b0, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    %g0 = stablehlo.optimization_barrier {jaxpp.boundary} %d0 : tensor<4x4xf32>
    %b1 = stablehlo.dot_general %g0, %v, contracting_dims = [1] x [1] {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"model"}]>]>} : (tensor<4x4xf32>, tensor<8x4xf32>) -> tensor<4x8xf32>
    %d1 = stablehlo.dot_general %b1, %w, contracting_dims = [1] x [1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
    return %s, %d1 : tensor<4x4xf32>, tensor<4x4xf32>
  }
}
