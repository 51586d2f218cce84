// RUN: jaxpp-opt %s --split-input-file -p share-functions{when=always} | filecheck %s
// RUN: jaxpp-opt %s --split-input-file -p share-functions | filecheck %s --check-prefix=NEVER
// RUN: jaxpp-opt %s --split-input-file -p share-functions{when=always},insert-transfers,plan-buffers,verify-program | filecheck %s --check-prefix=PROGRAM

// Stage 0 has an embedding in front of a layer, stage 2 a head behind one. Both become a function of the layer, in the
// order of that of stage 1, and one of the rest. Equal constants, of which stage 2 has two, are one.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:[^:]*]]: tensor<4xf32> {{[^%]*}} %[[T:[^:]*]]: tensor<4xf32> {{[^%]*}} %[[U:[^:]*]]: tensor<4xf32> {{[^%]*}} %[[V:[^:]*]]: tensor<4xf32> {{[^%]*}} %[[W:[^:]*]]: tensor<4xf32>
// CHECK-NEXT:    %[[E:.*]] = call @forward_0_own(%[[X]], %[[T]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[A:.*]]:2 = call @forward_0_shared(%[[E]], %[[U]]) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[B:.*]]:2 = call @forward_1(%[[A]]#0, %[[V]])
// CHECK-NEXT:    %[[C:.*]]:2 = call @forward_2_shared(%[[B]]#0, %[[W]]) {jaxpp.mesh = 2 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 2 : i64}
// CHECK-NEXT:    %[[L:.*]] = call @forward_2_own(%[[C]]#0) {jaxpp.mesh = 2 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 2 : i64}
// CHECK-NEXT:    return %[[L]], %[[A]]#1, %[[B]]#1, %[[C]]#1 :
// CHECK-NOT:     @forward_0(
// CHECK-NOT:     @forward_2(
// CHECK-LABEL: func.func private @forward_1(
// CHECK-LABEL: func.func private @forward_0_shared(
// CHECK-SAME:      attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}
// CHECK-NEXT:    %[[ONE:.*]] = stablehlo.constant dense<1.0
// CHECK-NEXT:    %[[P:.*]] = stablehlo.multiply %{{.*}}, %{{.*}}
// CHECK-NEXT:    %[[Q:.*]] = stablehlo.tanh %[[P]]
// CHECK-NEXT:    %[[R:.*]] = stablehlo.subtract %[[ONE]], %[[Q]]
// CHECK-NEXT:    %[[S:.*]] = stablehlo.multiply %[[R]], %[[Q]]
// CHECK-NEXT:    return %[[Q]], %[[S]]
// CHECK-LABEL: func.func private @forward_0_own(
// CHECK-NEXT:    stablehlo.sine
// CHECK-NEXT:    stablehlo.add
// CHECK-NEXT:    return
// CHECK-LABEL: func.func private @forward_2_own(
// CHECK-NEXT:    stablehlo.constant
// CHECK-NEXT:    stablehlo.subtract
// CHECK-NEXT:    stablehlo.cosine
// CHECK-NEXT:    return

// So the layer is one function, and compiled once. Unless it is asked for, every task is one call.

// PROGRAM-LABEL: func.func public @mesh_0(
// PROGRAM:         call @forward_0_own(
// PROGRAM:         call @forward_1(
// PROGRAM-LABEL: func.func public @mesh_1(
// PROGRAM:         call @forward_1(
// PROGRAM-LABEL: func.func public @mesh_2(
// PROGRAM:         call @forward_1(
// PROGRAM:         call @forward_2_own(
// PROGRAM-NOT:   func.func private @forward_{{[02]}}_shared
// NEVER-LABEL: func.func public @main(
// NEVER:         call @forward_0(
// NEVER-NEXT:    call @forward_1(
// NEVER-NEXT:    call @forward_2(
// NEVER-NEXT:    return
module attributes {jaxpp.meshes = 3 : i64} {
  func.func public @main(
      %x: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, %t: tensor<4xf32> {jaxpp.meshes = array<i64: 0>},
      %u: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, %v: tensor<4xf32> {jaxpp.meshes = array<i64: 1>},
      %w: tensor<4xf32> {jaxpp.meshes = array<i64: 2>})
      -> (tensor<4xf32> {jaxpp.meshes = array<i64: 2>}, tensor<4xf32> {jaxpp.meshes = array<i64: 0>},
          tensor<4xf32> {jaxpp.meshes = array<i64: 1>}, tensor<4xf32> {jaxpp.meshes = array<i64: 2>}) {
    %0:2 = call @forward_0(%x, %t, %u) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %1:2 = call @forward_1(%0#0, %v) {jaxpp.mesh = 1 : i64, jaxpp.stage = 1 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    %2:2 = call @forward_2(%1#0, %w) {jaxpp.mesh = 2 : i64, jaxpp.stage = 2 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    return %2#0, %0#1, %1#1, %2#1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  func.func private @forward_0(%x: tensor<4xf32>, %t: tensor<4xf32>, %u: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %e = stablehlo.sine %x : tensor<4xf32>
    %f = stablehlo.add %e, %t : tensor<4xf32>
    %p = stablehlo.multiply %f, %u : tensor<4xf32>
    %q = stablehlo.tanh %p : tensor<4xf32>
    %one = stablehlo.constant dense<1.0> : tensor<4xf32>
    %r = stablehlo.subtract %one, %q : tensor<4xf32>
    %s = stablehlo.multiply %r, %q : tensor<4xf32>
    return %q, %s : tensor<4xf32>, tensor<4xf32>
  }
  func.func private @forward_1(%x: tensor<4xf32>, %v: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %one = stablehlo.constant dense<1.0> : tensor<4xf32>
    %p = stablehlo.multiply %x, %v : tensor<4xf32>
    %q = stablehlo.tanh %p : tensor<4xf32>
    %r = stablehlo.subtract %one, %q : tensor<4xf32>
    %s = stablehlo.multiply %r, %q : tensor<4xf32>
    return %q, %s : tensor<4xf32>, tensor<4xf32>
  }
  func.func private @forward_2(%x: tensor<4xf32>, %w: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 2 : i64} {
    %one = stablehlo.constant dense<1.0> : tensor<4xf32>
    %two = stablehlo.constant dense<1.0> : tensor<4xf32>
    %p = stablehlo.multiply %x, %w : tensor<4xf32>
    %q = stablehlo.tanh %p : tensor<4xf32>
    %r = stablehlo.subtract %one, %q : tensor<4xf32>
    %s = stablehlo.multiply %r, %q : tensor<4xf32>
    %h = stablehlo.subtract %q, %two : tensor<4xf32>
    %l = stablehlo.cosine %h : tensor<4xf32>
    return %l, %s : tensor<4xf32>, tensor<4xf32>
  }
}

// -----

// The rest of stage 0 stands before and behind the layer, the layer of stage 2 hands on a value that stage 1 keeps for
// itself: both stay whole.

// CHECK-LABEL: func.func public @main(
// CHECK:         call @forward_0(
// CHECK-NEXT:    call @forward_1(
// CHECK-NEXT:    call @forward_2(
// CHECK-NEXT:    return
module attributes {jaxpp.meshes = 3 : i64} {
  func.func public @main(
      %x: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}, %v: tensor<4xf32> {jaxpp.meshes = array<i64: 1>},
      %w: tensor<4xf32> {jaxpp.meshes = array<i64: 2>}) -> (tensor<4xf32> {jaxpp.meshes = array<i64: 2>}) {
    %0 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @forward_1(%0) {jaxpp.mesh = 1 : i64, jaxpp.stage = 1 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %2 = call @forward_2(%1) {jaxpp.mesh = 2 : i64, jaxpp.stage = 2 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return %2 : tensor<4xf32>
  }
  func.func private @forward_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %e = stablehlo.sine %x : tensor<4xf32>
    %p = stablehlo.exponential %e : tensor<4xf32>
    %q = stablehlo.tanh %p : tensor<4xf32>
    %h = stablehlo.cosine %q : tensor<4xf32>
    return %h : tensor<4xf32>
  }
  func.func private @forward_1(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %p = stablehlo.exponential %x : tensor<4xf32>
    %q = stablehlo.tanh %p : tensor<4xf32>
    return %q : tensor<4xf32>
  }
  func.func private @forward_2(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 2 : i64} {
    %p = stablehlo.exponential %x : tensor<4xf32>
    %q = stablehlo.tanh %p : tensor<4xf32>
    %h = stablehlo.add %q, %p : tensor<4xf32>
    return %h : tensor<4xf32>
  }
}

// -----

// Which of the sums of stage 0 are those of stage 1 is not obvious: it stays whole.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:[^:]*]]: tensor<4xf32>
// CHECK-NEXT:    call @forward_0(%[[X]])
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<4xf32> {jaxpp.meshes = array<i64: 1>}) {
    %0 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @forward_1(%0) {jaxpp.mesh = 1 : i64, jaxpp.stage = 1 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @forward_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %p = stablehlo.add %x, %x : tensor<4xf32>
    %q = stablehlo.add %p, %p : tensor<4xf32>
    return %q : tensor<4xf32>
  }
  func.func private @forward_1(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %p = stablehlo.add %x, %x : tensor<4xf32>
    return %p : tensor<4xf32>
  }
}

// -----

// The operations of a loop count: stage 0 has three others in front of one loop, most of its operations are in the loop.

// CHECK-LABEL: func.func public @main(
// CHECK:         call @forward_0_own(
// CHECK-NEXT:    call @forward_0_shared(
// CHECK-NEXT:    call @forward_1(
module attributes {jaxpp.meshes = 2 : i64} {
  func.func public @main(%x: tensor<4xf32> {jaxpp.meshes = array<i64: 0>}) -> (tensor<4xf32> {jaxpp.meshes = array<i64: 1>}) {
    %0 = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = call @forward_1(%0) {jaxpp.mesh = 1 : i64, jaxpp.stage = 1 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @forward_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    %e = stablehlo.sine %x : tensor<4xf32>
    %f = stablehlo.cosine %e : tensor<4xf32>
    %g = stablehlo.abs %f : tensor<4xf32>
    %r = stablehlo.while(%i = %g) : tensor<4xf32>
     cond {
      %h = stablehlo.constant dense<0.5> : tensor<f32>
      %a = stablehlo.slice %i [0:1] : (tensor<4xf32>) -> tensor<1xf32>
      %b = stablehlo.reshape %a : (tensor<1xf32>) -> tensor<f32>
      %t = stablehlo.compare LT, %b, %h : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
    } do {
      %p = stablehlo.exponential %i : tensor<4xf32>
      %q = stablehlo.tanh %p : tensor<4xf32>
      stablehlo.return %q : tensor<4xf32>
    }
    return %r : tensor<4xf32>
  }
  func.func private @forward_1(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    %r = stablehlo.while(%i = %x) : tensor<4xf32>
     cond {
      %h = stablehlo.constant dense<0.5> : tensor<f32>
      %a = stablehlo.slice %i [0:1] : (tensor<4xf32>) -> tensor<1xf32>
      %b = stablehlo.reshape %a : (tensor<1xf32>) -> tensor<f32>
      %t = stablehlo.compare LT, %b, %h : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %t : tensor<i1>
    } do {
      %p = stablehlo.exponential %i : tensor<4xf32>
      %q = stablehlo.tanh %p : tensor<4xf32>
      stablehlo.return %q : tensor<4xf32>
    }
    return %r : tensor<4xf32>
  }
}
