// RUN: jaxpp-opt %s --split-input-file -p unroll-steps | filecheck %s
// RUN: jaxpp-opt %s --split-input-file -p unroll-steps,insert-transfers,plan-buffers,verify-program | filecheck %s --check-prefix=PROGRAM

// Two steps of one microbatch: the weight that the first one returns goes into the second. Batches are sliced where they
// are used, metrics stacked where they are.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:[^:]*]]: tensor<4xf32> {{[^%]*}} %[[XS:[^:]*]]: tensor<2x4xf32> {jaxpp.meshes = array<i64: 0>}) ->
// CHECK-SAME:      (tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, tensor<2xf32> {jaxpp.meshes = array<i64: 1>})
// CHECK:         %[[X0:.*]] = call @batch_0(%[[XS]], %{{.*}}) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[A0:.*]] = call @forward_0(%[[X0]], %[[W0]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[L0:.*]] = call @forward_1(%[[A0]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[W1:.*]] = call @after_0(%[[W0]], %[[A0]]) {jaxpp.mesh = 0 : i64}
// CHECK:         %[[X1:.*]] = call @batch_0(%[[XS]], %{{.*}}) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[A1:.*]] = call @forward_0(%[[X1]], %[[W1]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[L1:.*]] = call @forward_1(%[[A1]]) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[W2:.*]] = call @after_0(%[[W1]], %[[A1]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[LS:.*]] = call @metrics_1(%[[L0]], %[[L1]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[W2]], %[[LS]]

// Mesh 1 has nothing to do with the weight: it waits for no update.

// PROGRAM-LABEL: func.func public @mesh_1(
// PROGRAM:         stablehlo.recv
// PROGRAM-NEXT:    call @forward_1(
// PROGRAM-NEXT:    stablehlo.recv
// PROGRAM-NEXT:    call @forward_1(
// PROGRAM-NEXT:    call @metrics_1(
// PROGRAM-NEXT:    return
module attributes {jaxpp.meshes = 2 : i64, jaxpp.train_loop = {steps = 2 : i64, state = 1 : i64, delay = 0 : i64, schedule = ""}} {
  func.func public @main(%w: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, %x: tensor<4xf32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, tensor<f32> {jaxpp.meshes = array<i64: 1>}) {
    %a = call @forward_0(%x, %w) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %l = call @forward_1(%a) {jaxpp.mesh = 1 : i64, jaxpp.stage = 1 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<f32>
    %v = call @after_0(%w, %a) {jaxpp.mesh = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %v, %l : tensor<4xf32>, tensor<f32>
  }
  func.func private @forward_0(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    return %a : tensor<4xf32>
  }
  func.func private @forward_1(%a: tensor<4xf32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %l = stablehlo.dot_general %a, %a, contracting_dims = [0] x [0] : (tensor<4xf32>, tensor<4xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
  func.func private @after_0(%w: tensor<4xf32>, %a: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "after"} {
    %v = stablehlo.subtract %w, %a : tensor<4xf32>
    return %v : tensor<4xf32>
  }
}

// -----

// A schedule of both steps: the gradient of the second one is that of the first weight, the older one of the state, so its
// forward stands before the backward, and the update, of the first.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[W0:[^:]*]]: tensor<4xf32> {{[^%]*}} %[[V0:[^:]*]]: tensor<4xf32>
// CHECK:         call @forward_0(%{{.*}}, %[[V0]]) {{.*}} jaxpp.microbatch = 0
// CHECK:         %[[A1:.*]] = call @forward_0(%{{.*}}, %[[W0]]) {{.*}} jaxpp.microbatch = 1
// CHECK:         %[[G0:.*]] = call @backward_0(%{{.*}}) {{.*}} jaxpp.microbatch = 0
// CHECK-NEXT:    %[[W1:.*]] = call @after_0(%[[W0]], %[[G0]])
// CHECK-NEXT:    %[[G1:.*]] = call @backward_0(%[[A1]]) {{.*}} jaxpp.microbatch = 1
// CHECK-NEXT:    %[[W2:.*]] = call @after_0(%[[W1]], %[[G1]])
// CHECK-NEXT:    return %[[W2]], %[[W1]] :
module attributes {jaxpp.meshes = 1 : i64, jaxpp.train_loop = {steps = 2 : i64, state = 2 : i64, delay = 1 : i64,
    schedule = "schedule: gpipe\0Aplacement: 0\0Akind optimizer: backward|weight_grad; time 0.001\0Akind forward: forward@-1 forward~-1 ?optimizer#-2\0Amesh 0: 0F0 0F1 0B0 0optimizer0 0B1 0optimizer1\0A"}} {
  func.func public @main(%w: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, %v: tensor<4xf32> {jaxpp.meshes = array<i64: 0>},
      %x: tensor<4xf32> {jaxpp.meshes = array<i64: 0>})
      -> (tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, tensor<4xf32> {jaxpp.meshes = array<i64: 0>}) {
    %a = call @forward_0(%x, %v) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %g = call @backward_0(%a) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %u = call @after_0(%w, %g) {jaxpp.mesh = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %u, %w : tensor<4xf32>, tensor<4xf32>
  }
  func.func private @forward_0(%x: tensor<4xf32>, %w: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %a = stablehlo.multiply %x, %w : tensor<4xf32>
    return %a : tensor<4xf32>
  }
  func.func private @backward_0(%a: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %g = stablehlo.cosine %a : tensor<4xf32>
    return %g : tensor<4xf32>
  }
  func.func private @after_0(%w: tensor<4xf32>, %g: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "after"} {
    %v = stablehlo.subtract %w, %g : tensor<4xf32>
    return %v : tensor<4xf32>
  }
}

// -----

// A learning rate for each step: on a mesh of one device it has no sharding, and that of a scalar, which JAX writes, is
// none of a vector.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[RATES:[^:]*]]: tensor<2xf32> {jaxpp.meshes = array<i64: 0>})
// CHECK:         %[[RATE:.*]] = call @batch_0(%[[RATES]], %{{.*}})
// CHECK-NEXT:    call @after_0(%{{.*}}, %[[RATE]])
module attributes {jaxpp.meshes = 1 : i64, jaxpp.train_loop = {steps = 2 : i64, state = 1 : i64, delay = 0 : i64, schedule = ""}} {
  sdy.mesh @mesh = <["data"=1]>
  func.func public @main(%w: tensor<f32> {jaxpp.meshes = array<i64: 0>},
      %rate: tensor<f32> {jaxpp.meshes = array<i64: 0>, sdy.sharding = #sdy.sharding<@mesh, []>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 0>}) {
    %v = call @after_0(%w, %rate) {jaxpp.mesh = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %v : tensor<f32>
  }
  func.func private @after_0(%w: tensor<f32>, %rate: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"} {
    %v = stablehlo.multiply %w, %rate : tensor<f32>
    return %v : tensor<f32>
  }
}

// -----

// A step without tasks of microbatches: the schedule has nothing to order.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[W1:.*]] = call @after_0(
// CHECK-NEXT:    %[[W2:.*]] = call @after_0(%[[W1]])
// CHECK-NEXT:    return %[[W2]]
module attributes {jaxpp.meshes = 1 : i64, jaxpp.train_loop = {steps = 2 : i64, state = 1 : i64, delay = 0 : i64,
    schedule = "schedule: gpipe\0Aplacement: 0\0Akind optimizer: backward|weight_grad\0Amesh 0: 0F0 0B0 0optimizer0 0F1 0B1 0optimizer1\0A"}} {
  func.func public @main(%w: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<4xf32> {jaxpp.meshes = array<i64: 0>}) {
    %v = call @after_0(%w) {jaxpp.mesh = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return %v : tensor<4xf32>
  }
  func.func private @after_0(%w: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "after"} {
    %v = stablehlo.cosine %w : tensor<4xf32>
    return %v : tensor<4xf32>
  }
}
