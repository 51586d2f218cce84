// RUN: not jaxpp-opt %s --split-input-file -p import-shardy-mpmd 2>&1 | filecheck %s

// A module that Shardy did not partition.

// CHECK: error: @main has no mpmd topology
// CHECK-NEXT: give a module of Shardy's mpmd dialect
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// A mesh whose devices are in an order of their own.

// CHECK: error: mesh 'm1' of the topology has device_ids=[1, 0], expected axes alone
// CHECK-NEXT: order the devices when you run the program
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2], device_ids=[1, 0]>>>} {
  return %x : tensor<4xf32>
}

// -----

// A computation that no mesh is assigned to.

// CHECK: error: named computation 'g' has no mesh
// CHECK-NEXT: give it one: import-shardy-mpmd{assignment=g@MESH}
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
  %0 = mpmd.named_computation<"g"> (%x) (%a: tensor<4xf32>) {
    mpmd.return %a : tensor<4xf32>
  } : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// An operation outside of all fragments.

// CHECK: error: a stablehlo.negate on no mesh
// CHECK-NEXT: put it into a fragment, or into a named computation that has a mesh
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// A token.

// CHECK: error: mpmd.fragment has a value of type !stablehlo.token, expected tensors
// CHECK-NEXT: remove the tokens
func.func public @main(%x: !mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
  %t = mpmd.fragment<mesh="m1", origin=[]> (%x) (%a: tensor<4xf32>) {
    %b = stablehlo.create_token : !stablehlo.token
    mpmd.return %b : !stablehlo.token
  } : (!mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !stablehlo.token
  return %x : !mpmd.mesh_tensor<"m1", tensor<4xf32>>
}

// -----

// A value that stays in the memory of the host.

// CHECK: error: mpmd.transfer puts a value of @main into the memory 'pinned_host'
// CHECK-NEXT: only arguments and results of @main can be in the memory of the host
func.func public @main(%x: !mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
  %0 = mpmd.transfer %x : (!mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>, memory_kind="pinned_host">
  %1 = mpmd.transfer %0 : (!mpmd.mesh_tensor<"m1", tensor<4xf32>, memory_kind="pinned_host">) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
  return %1 : !mpmd.mesh_tensor<"m1", tensor<4xf32>>
}

// -----

// A fragment that computes in the memory of the host.

// CHECK: error: mpmd.fragment has a value in the memory 'pinned_host'
// CHECK-NEXT: transfer it to the memory 'device'; arguments and results of @main can be in 'pinned_host'
func.func public @main(%x: !mpmd.mesh_tensor<"m1", tensor<4xf32>, memory_kind="pinned_host">) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>, memory_kind="pinned_host">
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
  %0 = mpmd.fragment<mesh="m1", origin=[]> (%x) (%a: tensor<4xf32>) {
    mpmd.return %a : tensor<4xf32>
  } : (!mpmd.mesh_tensor<"m1", tensor<4xf32>, memory_kind="pinned_host">) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>, memory_kind="pinned_host">
  return %0 : !mpmd.mesh_tensor<"m1", tensor<4xf32>, memory_kind="pinned_host">
}

// -----

// A partial sum that leaves its fragment.

// CHECK{LITERAL}: error: mpmd.fragment has the sharding #sdy.sharding<@mesh, [{}], unreduced={"x"}>
// CHECK-NEXT: sum the value before it leaves its fragment
sdy.mesh @mesh = <["x"=2]>
func.func public @main(%x: !mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}], unreduced={"x"}>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
  %0 = mpmd.fragment<mesh="m1", origin=[]> (%x) (%a: tensor<4xf32>) {
    mpmd.return %a : tensor<4xf32>
  } : (!mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}], unreduced={"x"}>>
  return %0 : !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{}], unreduced={"x"}>>
}

// -----

// A sharding over an axis of no mesh.

// CHECK: error: func.func is sharded over 'y', no axis of the topology
// CHECK-NEXT: use the axes of its meshes
sdy.mesh @mesh = <["y"=2]>
func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}]>}) -> tensor<4xf32>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
  return %x : tensor<4xf32>
}

// -----

// A computation inside of a fragment.

// CHECK: error: mpmd.named_computation is inside of a mpmd.fragment
// CHECK-NEXT: inline it
func.func public @main(%x: !mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>, <"m2" : <["x"=2]>>>} {
  %0 = mpmd.fragment<mesh="m1", origin=[]> (%x) (%a: tensor<4xf32>) {
    %b = mpmd.named_computation<"f"> (%a) (%c: tensor<4xf32>) {
      mpmd.return %c : tensor<4xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    mpmd.return %b : tensor<4xf32>
  } : (!mpmd.mesh_tensor<"m1", tensor<4xf32>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>>
  return %0 : !mpmd.mesh_tensor<"m1", tensor<4xf32>>
}

// -----

// A call of a function that does not exist, which would end jaxlib's verifier.

// CHECK: error: mpmd.call calls @step, and there is no such function
module {
  sdy.mesh @step = <["x"=2]>
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32>
      attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>>} {
    %0 = mpmd.call @step(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}

// -----

// A mesh whose devices are in an order of their own.

// CHECK{LITERAL}: error: sdy.mesh has device_ids=[1, 0, 2, 3], expected axes alone
// CHECK-NEXT: order the devices when you run the program
sdy.mesh @mesh = <["x"=4], device_ids=[1, 0, 2, 3]>
func.func public @main(%x: !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=4]>>, <"m2" : <["x"=2]>>>} {
  return %x : !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{"x"}]>>
}

// -----

// The same, in a sharding.

// CHECK{LITERAL}: error: func.func has device_ids=[1, 0, 2, 3], expected axes alone
// CHECK-NEXT: order the devices when you run the program
func.func public @main(%x: !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<mesh<["x"=4], device_ids=[1, 0, 2, 3]>, [{"x"}]>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<mesh<["x"=4], device_ids=[1, 0, 2, 3]>, [{"x"}]>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=4]>>, <"m2" : <["x"=2]>>>} {
  return %x : !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<mesh<["x"=4], device_ids=[1, 0, 2, 3]>, [{"x"}]>>
}

// -----

// A sharding over a part of an axis.

// CHECK{LITERAL}: error: func.func has the sharding #sdy.sharding<@mesh, [{"x":(1)2}]>
// CHECK-NEXT: make the part of an axis an axis of the topology
sdy.mesh @mesh = <["x"=4]>
func.func public @main(%x: !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{"x":(1)2}]>>) -> !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{"x":(1)2}]>>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=4]>>, <"m2" : <["x"=2]>>>} {
  return %x : !mpmd.mesh_tensor<"m1", tensor<4xf32>, sharding=<@mesh, [{"x":(1)2}]>>
}

// -----

// A call of a function of the user.

// CHECK: error: a func.call on no mesh
// CHECK-NEXT: put it into a fragment, or into a named computation that has a mesh
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>>} {
  %0 = func.call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// A constraint outside of all fragments.

// CHECK: error: a sdy.sharding_constraint on no mesh
// CHECK-NEXT: put it into a fragment, or into a named computation that has a mesh
sdy.mesh @mesh = <["x"=2]>
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32>
    attributes {topology = #mpmd.topology<<"m1" : <["x"=2]>>>} {
  %0 = sdy.sharding_constraint %x <@mesh, [{"x"}]> : tensor<4xf32>
  return %0 : tensor<4xf32>
}
