// RUN: jaxpp-opt %s -p 'mark-stages{after="layer0 decoder/layer1"}' | filecheck %s
// RUN: jaxpp-opt %s -p 'mark-stages{after="train.py:7 train.py:8"}' | filecheck %s
// RUN: jaxpp-opt %s -p 'mark-stages{after="layer0 layer1"}' | jaxpp-opt -p 'inline-calls,find-microbatch-loop{schedule=1f1b meshes=3},number-stages'

// The scope of a layer is in the locations of its forward and of its backward. Its residuals stay inside. A mask goes
// through a mark beside the activations. The skip connection of stage 2 reads the mark of stage 0.

// CHECK-LABEL: func.func public @main
// CHECK: %[[SIN:.*]] = stablehlo.sine %arg0
// CHECK-NEXT: %[[COS:.*]] = stablehlo.cosine %arg0
// CHECK-NEXT: %[[MASK:.*]] = stablehlo.compare GT, %[[SIN]], %arg0
// CHECK-NEXT: %[[H0:.*]]:2 = stablehlo.optimization_barrier
// CHECK-SAME: {jaxpp.boundary = {name = "{{.*}}", phase = "forward", stage = 0 : i64}} %[[SIN]], %[[MASK]]
// CHECK-NEXT: %[[TANH:.*]] = stablehlo.tanh %[[H0]]#0
// CHECK-NEXT: %[[H1:.*]] = stablehlo.optimization_barrier
// CHECK-SAME: {jaxpp.boundary = {name = "{{.*}}", phase = "forward", stage = 1 : i64}} %[[TANH]]
// CHECK-NEXT: %[[ADD:.*]] = stablehlo.add %[[H1]], %[[H0]]#0
// CHECK-NEXT: %[[LOSS:.*]] = stablehlo.select %[[H0]]#1, %[[ADD]], %[[H1]]
// CHECK-NEXT: %[[SEED:.*]] = stablehlo.multiply %[[ADD]], %[[H1]]
// CHECK-NEXT: %[[G1:.*]] = stablehlo.optimization_barrier
// CHECK-SAME: {jaxpp.boundary = {name = "{{.*}}", phase = "backward", stage = 1 : i64}} %[[SEED]]
// CHECK-NEXT: %[[D1:.*]] = stablehlo.multiply %[[G1]], %[[TANH]]
// CHECK-NEXT: %[[SUM:.*]] = stablehlo.add %[[D1]], %[[G1]]
// CHECK-NEXT: %[[G0:.*]] = stablehlo.optimization_barrier
// CHECK-SAME: {jaxpp.boundary = {name = "{{.*}}", phase = "backward", stage = 0 : i64}} %[[SUM]]
// CHECK-NEXT: %[[D0:.*]] = stablehlo.multiply %[[G0]], %[[COS]]
// CHECK-NEXT: stablehlo.add %{{.*}}, %[[D0]]
// CHECK-NOT: @body
module {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%i = %c0, %v = %x) : tensor<i32>, tensor<4xf32>
      cond {
        %c4 = stablehlo.constant dense<4> : tensor<i32>
        %lt = stablehlo.compare LT, %i, %c4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %lt : tensor<i1>
      } do {
        %c1 = stablehlo.constant dense<1> : tensor<i32>
        %next = stablehlo.add %i, %c1 : tensor<i32>
        %1:2 = func.call @body(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
        %sum = stablehlo.add %v, %1#0 : tensor<4xf32>
        stablehlo.return %next, %sum : tensor<i32>, tensor<4xf32>
      }
    return %0#1 : tensor<4xf32>
  }
  func.func private @body(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %sin = stablehlo.sine %x : tensor<4xf32> loc(#layer0)
    %cos = stablehlo.cosine %x : tensor<4xf32> loc(#layer0)
    %mask = stablehlo.compare GT, %sin, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1> loc(#layer0)
    %tanh = stablehlo.tanh %sin : tensor<4xf32> loc(#layer1)
    %add = stablehlo.add %tanh, %sin : tensor<4xf32> loc("jit(f)/jvp()/add")
    %loss = stablehlo.select %mask, %add, %tanh : tensor<4xi1>, tensor<4xf32> loc("jit(f)/jvp()/select")
    %seed = stablehlo.multiply %add, %tanh : tensor<4xf32> loc("jit(f)/transpose(jvp())/mul")
    %d1 = stablehlo.multiply %seed, %tanh : tensor<4xf32> loc(#backward1)
    %sum = stablehlo.add %d1, %seed : tensor<4xf32> loc("jit(f)/transpose(jvp())/add_any")
    %d0 = stablehlo.multiply %sum, %cos : tensor<4xf32> loc(#backward0)
    return %d0, %loss : tensor<4xf32>, tensor<4xf32>
  }
}
#line7 = loc("a/train.py":7:3)
#line8 = loc("a/train.py":8:3)
#main = loc("a/train.py":20:1)
#layer0 = loc("jit(f)/jvp(layer0)/sin"(callsite(#line7 at #main)))
#layer1 = loc("jit(f)/jvp(decoder/layer1)/tanh"(callsite(#line8 at #main)))
#backward0 = loc("jit(f)/transpose(jvp(layer0))/mul"(callsite(#line7 at #main)))
#backward1 = loc("jit(f)/transpose(jvp(decoder/layer1))/mul"(callsite(#line8 at #main)))
