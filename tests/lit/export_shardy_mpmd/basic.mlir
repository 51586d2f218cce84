// RUN: jaxpp-opt %s --split-input-file -p export-shardy-mpmd | filecheck %s

// A call becomes a fragment call on its mesh. A value that another mesh uses twice is transferred once. The constant is
// made on both meshes. An argument on both meshes is on the first one, and is transferred to the other.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: !mpmd.mesh_tensor<"m0", tensor<f32>> {jax.buffer_donor = true}, %{{.*}}: !mpmd.mesh_tensor<"m0", tensor<f32>>)
// CHECK-SAME:      -> (!mpmd.mesh_tensor<"m1", tensor<f32>>, !mpmd.mesh_tensor<"m0", tensor<f32>>)
// CHECK-SAME:      topology = #mpmd.topology<<"m0" : <["devices"=1]>>, <"m1" : <["devices"=1]>>>
// CHECK-NEXT:    %[[C_0:.*]] = mpmd.fragment_call<mesh="m0", origin=[]> @constant_0()
// CHECK-NEXT:    %[[F:.*]] = mpmd.fragment_call<mesh="m0", origin=["stage_0"]> @forward_0(%[[X]], %[[C_0]]) {call_counter = 3 : ui32, jaxpp.microbatch = 3 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = mpmd.transfer %[[F]]
// CHECK-NEXT:    %[[B:.*]] = mpmd.fragment_call<mesh="m1", origin=["stage_1"(1)]> @backward_1(%[[T]], %[[T]]) {call_counter = 3 : ui32, jaxpp.microbatch = 3 : i64, jaxpp.stage = 1 : i64}
// CHECK-NEXT:    %[[C_1:.*]] = mpmd.fragment_call<mesh="m1", origin=[]> @constant_0()
// CHECK-NEXT:    mpmd.fragment_call<mesh="m1", origin=[]> @after_0(%[[B]], %[[C_1]]) :
// CHECK-NEXT:    %[[A:.*]] = mpmd.fragment_call<mesh="m0", origin=[]> @after_1(%[[X]]) :
// CHECK-NEXT:    %[[X_1:.*]] = mpmd.transfer %[[X]]
// CHECK-NEXT:    mpmd.fragment_call<mesh="m1", origin=[]> @after_1(%[[X_1]]) :
// CHECK-NEXT:    return %{{.*}}, %[[A]] :
// CHECK:       func.func private @forward_0(%{{.*}}) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64, mesh_shape = #sdy.mesh<["devices"=1]>}
// CHECK:       func.func private @constant_0() -> tensor<f32> attributes {mesh_shape = #sdy.mesh<["devices"=1]>}
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<f32> {jaxpp.meshes = array<i64: 0, 1>, jax.buffer_donor = true}, %unused: tensor<f32> {jaxpp.meshes = array<i64>})
      -> (tensor<f32> {jaxpp.meshes = array<i64: 1>}, tensor<f32> {jaxpp.meshes = array<i64: 0, 1>}) {
    %c = stablehlo.constant dense<1.0> : tensor<f32>
    %0 = call @forward_0(%x, %c) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 3 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %1 = call @backward_1(%0, %0) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 3 : i64, jaxpp.stage = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2 = call @after_0(%1, %c) {jaxpp.mesh = 1 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %3 = call @after_1(%x) {jaxpp.meshes = array<i64: 0, 1>} : (tensor<f32>) -> tensor<f32>
    return %2, %3 : tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @backward_1(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 1 : i64} {
    %0 = stablehlo.multiply %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @after_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.subtract %a, %b : tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @after_1(%a: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.negate %a : tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

// Each size of mesh has a function of its own, and shards the dimensions that it divides. The state in the memory of the
// host is transferred to the devices.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:.*]]: !mpmd.mesh_tensor<"m0", tensor<6xf32>, sharding=<@mesh, [{}]>, memory_kind="pinned_host">)
// CHECK-SAME:      -> !mpmd.mesh_tensor<"m1", tensor<6xf32>, sharding=<@mesh, [{}]>, memory_kind="pinned_host">
// CHECK-SAME:      topology = #mpmd.topology<<"m0" : <["data"=2]>>, <"m1" : <["data"=4]>>>
// CHECK-NEXT:    %[[D:.*]] = mpmd.transfer %[[X]]
// CHECK-NEXT:    %[[A:.*]] = mpmd.fragment_call<mesh="m0", origin=[]> @after_0(%[[D]]) {{.*}} -> !mpmd.mesh_tensor<"m0", tensor<6xf32>, sharding=<@mesh, [{"data"}]>>
// CHECK-NEXT:    %[[T:.*]] = mpmd.transfer %[[A]]
// CHECK-NEXT:    %[[B:.*]] = mpmd.fragment_call<mesh="m1", origin=[]> @after_0_on_shape_1(%[[T]])
// CHECK-NEXT:    %[[H:.*]] = mpmd.transfer %[[B]]
// CHECK-NEXT:    return %[[H]]
module attributes {jaxpp.mesh_sizes = [{data = 2 : i64}, {data = 4 : i64}], jaxpp.meshes = 2 : i64, mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["data"=4]>
  func.func public @main(%x: tensor<6xf32> {jaxpp.meshes = array<i64: 0>, mhlo.memory_kind = "pinned_host"})
      -> (tensor<6xf32> {jaxpp.meshes = array<i64: 1>, mhlo.memory_kind = "pinned_host"}) {
    %0 = call @after_0(%x) {jaxpp.mesh = 0 : i64} : (tensor<6xf32>) -> tensor<6xf32>
    %1 = call @after_0(%0) {jaxpp.mesh = 1 : i64} : (tensor<6xf32>) -> tensor<6xf32>
    return %1 : tensor<6xf32>
  }
  func.func private @after_0(%a: tensor<6xf32>) -> (tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>}) attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.negate %a : tensor<6xf32>
    return %0 : tensor<6xf32>
  }
}
