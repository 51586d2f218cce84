// RUN: jaxpp-opt %s --split-input-file -p plan-buffers | filecheck %s

// The same weight, not donated: it does not die, and the result takes over the gradient's buffer instead.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[W:.*]]: tensor<f32> {jaxpp.number = 0 : i64}, %[[X:.*]]: tensor<f32> {jaxpp.number = 1 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[W]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[AFTER_0:.*]] = call @after_0(%[[W]], %[[B0_0]]) {jaxpp.last_use = array<i64: 1>, jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    return %[[AFTER_0]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[POWER:.*]] = stablehlo.power %[[TANH]], %[[B]]
// CHECK-NEXT:    return %[[POWER]]
// CHECK-LABEL: func.func private @after_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32> {tf.aliasing_output = 0 : i32})
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "after"}
// CHECK-NEXT:    %[[NEGATE:.*]] = stablehlo.negate %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[NEGATE]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%w: tensor<f32> {jaxpp.number = 0 : i64}, %x: tensor<f32> {jaxpp.number = 1 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %1 = call @backward_0(%w, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2 = call @after_0(%w, %1) {jaxpp.mesh = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.power %0, %b : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @after_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "after"} {
    %0 = stablehlo.negate %b : tensor<f32>
    %1 = stablehlo.add %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// The sum dies at the second call but not at the first, which a task uses once more: the function takes over no buffer.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}, tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[F0_0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B0_1:.*]] = call @backward_0(%[[B0_0]], %[[X]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[F0_0]], %[[X]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[B0_1]], %[[F0_1]]
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[POWER:.*]] = stablehlo.power %[[TANH]], %[[B]]
// CHECK-NEXT:    return %[[POWER]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[TANH]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}, tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %0 = call @forward_0(%x, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %1 = call @backward_0(%0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2 = call @backward_0(%1, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %3 = call @forward_0(%0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %2, %3 : tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.power %0, %b : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %b : tensor<f32>
    %1 = stablehlo.add %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// So it is when the mesh function returns the value that one of the calls adds to.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}, tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[F0_0]], %[[X]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B0_1:.*]] = call @backward_0(%[[B0_0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[B0_1]], %[[B0_0]]
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[POWER:.*]] = stablehlo.power %[[TANH]], %[[B]]
// CHECK-NEXT:    return %[[POWER]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[TANH]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}, tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %0 = call @forward_0(%x, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %1 = call @backward_0(%0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %2 = call @backward_0(%1, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %2, %1 : tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.power %0, %b : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %b : tensor<f32>
    %1 = stablehlo.add %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// And when it is the argument twice: it dies, but half of the function still reads it.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[F0_0]], %[[F0_0]]) {jaxpp.last_use = array<i64: 0, 1>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[B0_0]]
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[POWER:.*]] = stablehlo.power %[[TANH]], %[[B]]
// CHECK-NEXT:    return %[[POWER]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[TANH]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %0 = call @forward_0(%x, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %1 = call @backward_0(%0, %0) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.power %0, %b : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %b : tensor<f32>
    %1 = stablehlo.add %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// A constant is made once, when the program is loaded, and never dies.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[C0:.*]] = stablehlo.constant dense<0.000000e+00>
// CHECK-NEXT:    %[[B0_0:.*]] = call @backward_0(%[[C0]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[B0_0]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[B]]
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[TANH]]
// CHECK-NEXT:    return %[[ADD]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = call @backward_0(%c, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %b : tensor<f32>
    %1 = stablehlo.add %a, %0 : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// A result that is not computed elementwise takes over nothing: XLA could not write it while it reads.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[F0_1:.*]] = call @forward_0(%[[F0_0]], %[[X]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[F0_1]]
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[POWER:.*]] = stablehlo.power %[[TANH]], %[[B]]
// CHECK-NEXT:    return %[[POWER]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %0 = call @forward_0(%x, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %1 = call @forward_0(%0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 1 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.power %0, %b : tensor<f32>
    return %1 : tensor<f32>
  }
}

// -----

// Two results, one argument that dies: the first result has it.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      %[[X:.*]]: tensor<f32> {jaxpp.number = 0 : i64})
// CHECK-SAME:      -> (tensor<f32> {jaxpp.number = 0 : i64}, tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[T:.*]] = stablehlo.create_token
// CHECK-NEXT:    %[[F0_0:.*]] = call @forward_0(%[[X]], %[[X]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B0_0:.*]]:2 = call @backward_0(%[[F0_0]], %[[X]]) {jaxpp.last_use = array<i64: 0>, jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    return %[[B0_0]]#0, %[[B0_0]]#1
// CHECK-LABEL: func.func private @forward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32>, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[TANH:.*]] = stablehlo.tanh %[[A]]
// CHECK-NEXT:    %[[POWER:.*]] = stablehlo.power %[[TANH]], %[[B]]
// CHECK-NEXT:    return %[[POWER]]
// CHECK-LABEL: func.func private @backward_0(
// CHECK-SAME:      %[[A:.*]]: tensor<f32> {tf.aliasing_output = 0 : i32}, %[[B:.*]]: tensor<f32>)
// CHECK-SAME:      -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[ADD:.*]] = stablehlo.add %[[A]], %[[B]]
// CHECK-NEXT:    %[[SUB:.*]] = stablehlo.subtract %[[A]], %[[B]]
// CHECK-NEXT:    return %[[ADD]], %[[SUB]]
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}, tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %0 = call @forward_0(%x, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %1:2 = call @backward_0(%0, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
    return %1#0, %1#1 : tensor<f32>, tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.tanh %a : tensor<f32>
    %1 = stablehlo.power %0, %b : tensor<f32>
    return %1 : tensor<f32>
  }
  func.func private @backward_0(%a: tensor<f32>, %b: tensor<f32>) -> (tensor<f32>, tensor<f32>) attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %0 = stablehlo.add %a, %b : tensor<f32>
    %1 = stablehlo.subtract %a, %b : tensor<f32>
    return %0, %1 : tensor<f32>, tensor<f32>
  }
}
