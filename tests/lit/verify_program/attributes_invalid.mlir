// RUN: not jaxpp-opt %s --split-input-file -p verify-program 2>&1 | filecheck %s

// A number of devices that is none.

// CHECK: attributes_invalid.mlir: error: mhlo.num_partitions is 0 : i32, expected the number of devices of a mesh
module attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 0 : i32} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// Sizes of two meshes where there is one.

// CHECK: attributes_invalid.mlir: error: jaxpp.mesh_sizes is a list of 2, the module has 1 meshes
module attributes {jaxpp.meshes = 1 : i64, jaxpp.mesh_sizes = [{data = 1 : i64}, {data = 2 : i64}]} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// An axis without devices.

// CHECK: attributes_invalid.mlir: error: jaxpp.mesh_sizes says {data = 0 : i64} of mesh 0, expected the size of every axis
module attributes {jaxpp.meshes = 1 : i64, jaxpp.mesh_sizes = [{data = 0 : i64}]} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// Two functions for one mesh.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: a second function for mesh 0
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func public @mesh_1(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// A mesh that is no number.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:3: error: a func.func has jaxpp.mesh = "0", expected a number
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = "0"} {
    return %x : tensor<f32>
  }
}

// -----

// A function without a body.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:3: error: a mesh function has 0 blocks, expected one
module attributes {jaxpp.meshes = 1 : i64} {
  func.func private @mesh_0() attributes {jaxpp.mesh = 0 : i64}
}

// -----

// Arguments are counted from 0 on.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:3: error: argument 0 of @mesh_0 has jaxpp.number = -1 : i64, expected the number of the step's argument
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = -1 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// One argument of the step twice.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:3: error: @mesh_0 has a second argument with jaxpp.number = 0 : i64
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}, %y: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// One result of the step twice.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:3: error: @mesh_0 has a second result with jaxpp.number = 0 : i64
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}, tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x, %x : tensor<f32>, tensor<f32>
  }
}

// -----

// A result that nobody returns.

// CHECK: attributes_invalid.mlir: error: no mesh returns result 0 of the step
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// One argument of two types.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: argument 0 of the step is of type tensor<2xf32> on mesh 1, tensor<f32> on mesh 0
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func public @mesh_1(%x: tensor<2xf32> {jaxpp.number = 0 : i64}) -> (tensor<2xf32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    return %x : tensor<2xf32>
  }
}

// -----

// An argument that is donated here and kept there.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: argument 0 of the step is donated on mesh 1, kept on mesh 0
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func public @mesh_1(%x: tensor<f32> {jaxpp.number = 0 : i64, jax.buffer_donor = true}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// A donation that is no flag.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:3: error: argument 0 of @mesh_0: jax.buffer_donor is 1 : i64, expected true or false
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64, jax.buffer_donor = 1 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// A block of another form.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:3: error: argument 0 of @mesh_0 has jaxpp.number = array<i64: 0, 0>, expected the number of the step's argument, or array<i64: number, block, blocks>
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = array<i64: 0, 0>}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// A block beyond the last.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:3: error: result 0 of @mesh_0 has jaxpp.number = array<i64: 0, 1, 1>, expected the number of the step's result, or array<i64: number, block, blocks>
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = array<i64: 0, 1, 1>}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// One of two blocks, on one mesh.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:3: error: argument 0 of the step has the blocks {{\[\[0, 2\]\]}}, expected one of 1 on each of its meshes
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<2xf32> {jaxpp.number = array<i64: 0, 0, 2>}) -> (tensor<2xf32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<2xf32>
  }
}

// -----

// A function that becomes a result it does not have.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: argument 0 of @forward_0: tf.aliasing_output is 1 : i32, expected the number of one of 1 results
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32> {tf.aliasing_output = 1 : i32}) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// Two buffers for one result.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: argument 1 of @forward_0 becomes result 0, and so does argument 0
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32> {tf.aliasing_output = 0 : i32}, %b: tensor<f32> {tf.aliasing_output = 0 : i32}) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// A buffer of another size.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: argument 1 of @forward_0 becomes result 0, which is of another type: tensor<2xf32>, tensor<f32>
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>, %b: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// A kind that is no name.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: a func.func has jaxpp.kind = 0 : i64, expected a string
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> (tensor<f32>) attributes {jaxpp.kind = 0 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// A stage that is none.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: @forward_0: jaxpp.stage is -1 : i64, expected the number of a stage
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = -1 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// A call for another mesh.

// CHECK: attributes_invalid.mlir:[[# @LINE + 3]]:10: error: the call of @forward_0: jaxpp.mesh is 1 : i64, expected 0, the mesh of its function
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %c = call @forward_0(%x) {jaxpp.mesh = 1 : i64} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// A stage without its microbatch.

// CHECK: attributes_invalid.mlir:[[# @LINE + 3]]:10: error: the call of @forward_0, which is a forward, has jaxpp.stage = 0 : i64 and no jaxpp.microbatch
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %c = call @forward_0(%x) {jaxpp.stage = 0 : i64} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// Fused tasks with a stage too few.

// CHECK: attributes_invalid.mlir:[[# @LINE + 3]]:10: error: the call of @forward_0, which is a forward, has jaxpp.stage = array<i64: 0> and jaxpp.microbatch = array<i64: 0, 1>
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %c = call @forward_0(%x) {jaxpp.stage = array<i64: 0>, jaxpp.microbatch = array<i64: 0, 1>} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// Fused tasks with a slice too few.

// CHECK: attributes_invalid.mlir:[[# @LINE + 3]]:10: error: the call of @both, which is a forward+forward, has jaxpp.stage = array<i64: 0, 0> and jaxpp.microbatch = array<i64: 0, 1> and jaxpp.slice = array<i64: 0>
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %c = call @both(%x) {jaxpp.stage = array<i64: 0, 0>, jaxpp.microbatch = array<i64: 0, 1>, jaxpp.slice = array<i64: 0>} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func private @both(%a: tensor<f32> {jaxpp.task = 0 : i64}) -> (tensor<f32> {jaxpp.task = 0 : i64}) attributes {jaxpp.kind = "forward+forward"} {
    return %a : tensor<f32>
  }
}

// -----

// A stage below the first.

// CHECK: attributes_invalid.mlir:[[# @LINE + 3]]:10: error: the call of @forward_0, which is a forward, has jaxpp.stage = -1 : i64 and jaxpp.microbatch = 0 : i64
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %c = call @forward_0(%x) {jaxpp.stage = -1 : i64, jaxpp.microbatch = 0 : i64} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// Last uses of another form.

// CHECK: attributes_invalid.mlir:[[# @LINE + 3]]:10: error: a func.call has jaxpp.last_use = 0 : i64, expected array<i64: ...>
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %c = call @forward_0(%x) {jaxpp.last_use = 0 : i64} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// A last use of an operand that is not there.

// CHECK: attributes_invalid.mlir:[[# @LINE + 3]]:10: error: jaxpp.last_use names operand 3, which must not die here
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %c = call @forward_0(%x) {jaxpp.last_use = array<i64: 3>} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %a : tensor<f32>
  }
}

// -----

// A task that calls itself.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: @forward_0 calls itself
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32>) -> (tensor<f32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %0 = call @forward_0(%a) : (tensor<f32>) -> tensor<f32>
    return %a : tensor<f32>
  }
}

// -----

// A mesh that calls a mesh.

// CHECK: attributes_invalid.mlir:[[# @LINE + 3]]:10: error: a call of @mesh_1, which is no task in the module
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %c = call @mesh_1(%x) {} : (tensor<f32>) -> tensor<f32>
    return %c : tensor<f32>
  }
  func.func public @mesh_1(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 1 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// Two sends that both begin the chain.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:11: error: a stablehlo.send does not take the token of what is before it
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %t1 = "stablehlo.send"(%x, %t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    %t2 = "stablehlo.send"(%x, %t) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %b, %t1 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    return %b : tensor<f32>
  }
}

// -----

// A call that takes the token.

// CHECK: attributes_invalid.mlir:[[# @LINE + 7]]:5: error: a func.call of a token, which only a send or a recv takes
module attributes {jaxpp.meshes = 1 : i64} {
  func.func private @f(%t: !stablehlo.token) attributes {jaxpp.kind = "before"} {
    return
  }
  func.func public @mesh_0() attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    call @f(%t) : (!stablehlo.token) -> ()
    return
  }
}

// -----

// A send of nothing.

// CHECK: attributes_invalid.mlir:[[# @LINE + 4]]:11: error: a stablehlo.send of 0 values, expected one
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %t1 = "stablehlo.send"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> !stablehlo.token
    return
  }
  func.func public @mesh_1() -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 1 : i64} {
    %t = stablehlo.create_token : !stablehlo.token
    %b, %t1 = "stablehlo.recv"(%t) <{channel_handle = #stablehlo.channel_handle<handle = 0, type = 1>, source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
    return %b : tensor<f32>
  }
}

// -----

// A task of two, whose argument is of neither.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: argument 0 of @forward_0, which is 2 tasks, has jaxpp.task = 2 : i64
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32> {jaxpp.task = 2 : i64}) -> (tensor<f32> {jaxpp.task = 0 : i64}) attributes {jaxpp.kind = "forward+backward"} {
    return %a : tensor<f32>
  }
}

// -----

// A task of two, whose result is of neither.

// CHECK: attributes_invalid.mlir:[[# @LINE + 5]]:3: error: result 0 of @forward_0, which is 2 tasks, has no jaxpp.task
module attributes {jaxpp.meshes = 1 : i64} {
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
  func.func private @forward_0(%a: tensor<f32> {jaxpp.task = 1 : i64}) -> (tensor<f32>) attributes {jaxpp.kind = "forward+backward"} {
    return %a : tensor<f32>
  }
}

// -----

// What is in no function.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:8: error: a stablehlo.constant outside of the functions
module attributes {jaxpp.meshes = 1 : i64} {
  %0 = stablehlo.constant dense<0> : tensor<i32>
  func.func public @mesh_0(%x: tensor<f32> {jaxpp.number = 0 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    return %x : tensor<f32>
  }
}

// -----

// A sum that is another argument's.

// CHECK: attributes_invalid.mlir:[[# @LINE + 2]]:3: error: jaxpp.sums of @weight_grad_0 are [1]: no arguments of the types of its results
module attributes {jaxpp.meshes = 1 : i64} {
  func.func private @weight_grad_0(%sum: tensor<f32>, %x: tensor<2xf32>) -> tensor<f32> attributes {jaxpp.kind = "weight_grad", jaxpp.stage = 0 : i64, jaxpp.sums = array<i64: 1>} {
    return %sum : tensor<f32>
  }
  func.func public @mesh_0(%s: tensor<f32> {jaxpp.number = 0 : i64}, %x: tensor<2xf32> {jaxpp.number = 1 : i64}) -> (tensor<f32> {jaxpp.number = 0 : i64}) attributes {jaxpp.mesh = 0 : i64} {
    %r = call @weight_grad_0(%s, %x) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64} : (tensor<f32>, tensor<2xf32>) -> tensor<f32>
    return %r : tensor<f32>
  }
}
