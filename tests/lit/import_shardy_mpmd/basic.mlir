// RUN: jaxpp-opt %s --split-input-file -p import-shardy-mpmd | filecheck %s

// A fragment becomes a call of a function on its mesh. A transfer becomes its operand.

// CHECK:       module attributes {jaxpp.meshes = 2 : i64, mhlo.num_partitions = 1 : i32}
// CHECK:         sdy.mesh @mesh = <["x"=1]>
// CHECK-LABEL:   func.func public @main(
// CHECK-SAME:        %[[X:.*]]: tensor<4xf32> {jax.buffer_donor = true, jaxpp.meshes = array<i64: 0>})
// CHECK-SAME:        -> (tensor<4xf32> {jaxpp.meshes = array<i64: 1>})
// CHECK-NEXT:      %[[F:.*]] = call @f_g_bwd_0(%[[X]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:      %[[H:.*]] = call @fragment_0(%[[F]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:      return %[[H]]
// CHECK:         func.func private @f_g_bwd_0(%[[A:.*]]: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "fragment"}
// CHECK-NEXT:      %[[B:.*]] = stablehlo.negate %[[A]]
// CHECK-NEXT:      return %[[B]]
// CHECK:         func.func private @fragment_0(
// CHECK-NEXT:      stablehlo.tanh
func.func public @main(%x: !mpmd.mesh_tensor<"m1", tensor<4xf32>> {jax.buffer_donor = true})
    -> !mpmd.mesh_tensor<"m2", tensor<4xf32>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=1]>>, <"m2" : <["x"=1]>>>} {
  %0 = mpmd.fragment<mesh="m1", origin=["f", "g"(1)], stage=3> (%x) {remat} (%a: tensor<4xf32>) {
    %b = stablehlo.negate %a : tensor<4xf32>
    mpmd.return %b : tensor<4xf32>
  } : (!mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
  %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m2", tensor<4xf32>>
  %2 = mpmd.fragment<mesh="m2", origin=[]> (%1) (%a: tensor<4xf32>) {
    %b = stablehlo.tanh %a : tensor<4xf32>
    mpmd.return %b : tensor<4xf32>
  } : (!mpmd.mesh_tensor<"m2", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m2", tensor<4xf32>>
  return %2 : !mpmd.mesh_tensor<"m2", tensor<4xf32>>
}

// -----

// Fragment calls with equal shardings share a function; another sharding takes a copy of it. The function of a fragment
// that only makes a constant disappears, and so does a function that nobody calls. A transfer that changes the sharding
// is a call on the mesh that receives. The meshes have different axes, so @mesh has the axes of both.

// CHECK:       module attributes {jaxpp.mesh_sizes = [{x = 2 : i64, y = 1 : i64}, {x = 1 : i64, y = 4 : i64}], jaxpp.meshes = 2 : i64, mhlo.num_partitions = 4 : i32}
// CHECK-NEXT:    sdy.mesh @mesh = <["x"=2, "y"=4]>
// CHECK-LABEL:   func.func public @main(
// CHECK-SAME:        %[[X:.*]]: tensor<4xf32> {jaxpp.meshes = array<i64: 0>, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
// CHECK-NEXT:      %[[F:.*]] = call @f(%[[X]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:      %[[F_0:.*]] = call @f_0(%[[F]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:      %[[C:.*]] = stablehlo.constant
// CHECK-NEXT:      %[[R:.*]] = call @reshard_0(%[[F_0]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:      %[[G:.*]] = call @g(%[[R]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:      return %[[G]], %[[C]]
// CHECK:         func.func private @f(%{{.*}}: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
// CHECK-NEXT:      stablehlo.negate %{{.*}} {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}]>]>}
// CHECK:         func.func private @g(%{{.*}}: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>})
// CHECK-NOT:     @unused
// CHECK:         func.func private @f_0(%{{.*}}: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
// CHECK:         func.func private @reshard_0(%{{.*}} {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>})
module {
  sdy.mesh @m1 = <["x"=2]>
  sdy.mesh @m2 = <["y"=4]>
  func.func public @main(%x: !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@m1, [{"x"}]>>)
      -> (!mpmd.mesh_tensor<"m2", tensor<4xf32>, sharding=<@m2, [{"y"}]>>, !mpmd.mesh_tensor<"m2", tensor<4xf32>>)
      attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["y"=4]>>>} {
    %0 = mpmd.fragment_call<mesh="m1", origin=["f"]> @f(%x) : (!mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@m1, [{"x"}]>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@m1, [{"x"}]>>
    %1 = mpmd.fragment_call<mesh="m1", origin=["f"]> @f(%0) : (!mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@m1, [{"x"}]>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
    %c = mpmd.fragment<mesh="m2", origin=[]> () () {
      %b = stablehlo.constant dense<1.0> : tensor<4xf32>
      mpmd.return %b : tensor<4xf32>
    } : () -> !mpmd.mesh_tensor<"m2", tensor<4xf32>>
    %2 = mpmd.transfer %1 : (!mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m2", tensor<4xf32>, sharding=<@m2, [{"y"}]>>
    %3 = mpmd.fragment_call<mesh="m2", origin=["f"]> @g(%2) : (!mpmd.mesh_tensor<"m2", tensor<4xf32>, sharding=<@m2, [{"y"}]>>) -> !mpmd.mesh_tensor<"m2", tensor<4xf32>, sharding=<@m2, [{"y"}]>>
    return %3, %c : !mpmd.mesh_tensor<"m2", tensor<4xf32>, sharding=<@m2, [{"y"}]>>, !mpmd.mesh_tensor<"m2", tensor<4xf32>>
  }
  func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    %0 = stablehlo.negate %a {sdy.sharding = #sdy.sharding_per_value<[<@m1, [{"x"}]>]>} : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @g(%a: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["y"=4]>} {
    %0 = stablehlo.tanh %a : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @unused(%a: tensor<4xf32>) -> tensor<4xf32> attributes {mesh_shape = #sdy.mesh<["x"=2]>} {
    return %a : tensor<4xf32>
  }
}
