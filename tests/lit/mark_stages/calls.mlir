// RUN: jaxpp-opt %s --split-input-file -p 'mark-stages{after="layer#0 layer#1"}' | filecheck %s

// The calls of a layer count from 0, in the backward from the last one. Arguments of a call are no scope.

// CHECK-LABEL: @main
// CHECK: %[[A:.*]] = call @layer(%arg0)
// CHECK-NEXT: %[[MA:.*]] = stablehlo.optimization_barrier {{.*}}name = "layer#0", phase = "forward", stage = 0 : i64}} %[[A]]
// CHECK-NEXT: %[[B:.*]] = call @layer(%[[MA]])
// CHECK-NEXT: %[[MB:.*]] = stablehlo.optimization_barrier {{.*}}name = "layer#1", phase = "forward", stage = 1 : i64}} %[[B]]
// CHECK-NEXT: %[[C:.*]] = call @layer(%[[MB]])
// CHECK-NEXT: %[[DC:.*]] = call @gradient(%[[C]])
// CHECK-NEXT: %[[GB:.*]] = stablehlo.optimization_barrier {{.*}}phase = "backward", stage = 1 : i64}} %[[DC]]
// CHECK-NEXT: %[[DB:.*]] = call @gradient(%[[GB]])
// CHECK-NEXT: %[[GA:.*]] = stablehlo.optimization_barrier {{.*}}phase = "backward", stage = 0 : i64}} %[[DB]]
// CHECK-NEXT: call @gradient(%[[GA]])
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = call @layer(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("jvp(jit(layer))"("a.py":1:1))
  %b = call @layer(%a) : (tensor<4xf32>) -> tensor<4xf32> loc("jvp(jit(layer))"("a.py":1:1))
  %c = call @layer(%b) : (tensor<4xf32>) -> tensor<4xf32> loc("jvp(jit(layer))"("a.py":1:1))
  %dc = call @gradient(%c) : (tensor<4xf32>) -> tensor<4xf32> loc("transpose(jvp(jit(layer)))"("a.py":1:1))
  %db = call @gradient(%dc) : (tensor<4xf32>) -> tensor<4xf32> loc("transpose(jvp(jit(layer)))"("a.py":1:1))
  %da = call @gradient(%db) : (tensor<4xf32>) -> tensor<4xf32> loc("transpose(jvp(jit(layer)))"("a.py":1:1))
  return %da : tensor<4xf32>
}
func.func private @layer(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func private @gradient(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.negate %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// A forward alone has no backward marks.

// CHECK-LABEL: @main
// CHECK-COUNT-2: optimization_barrier {{.*}}"forward"
// CHECK-NOT: optimization_barrier
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = call @layer(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("jit(layer)")
  %b = call @layer(%a) : (tensor<4xf32>) -> tensor<4xf32> loc("jit(layer)")
  %c = call @layer(%b) : (tensor<4xf32>) -> tensor<4xf32> loc("jit(layer)")
  return %c : tensor<4xf32>
}
func.func private @layer(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
