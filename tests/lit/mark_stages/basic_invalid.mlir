// RUN: not jaxpp-opt %s --split-input-file -p 'mark-stages{after="first second#1"}' 2>&1 | filecheck %s
// RUN: not jaxpp-opt %s --split-input-file -p 'mark-stages{after=""}' 2>&1 | filecheck %s --check-prefix=NONE
// NONE: error: mark-stages: after names no scope
// NONE-NEXT: give the scopes of all stages but the last: "layer0 layer1" or "layer#0 layer#1"

// A scope that is only in the backward.

// CHECK: error: the forward has no operation in scope 'first'
// CHECK-NEXT: locations have the scopes: print them with lowered.as_text(debug_info=True)
func.func @backward_alone(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32> loc("transpose(jvp(first))/tanh")
  return %0 : tensor<4xf32>
}

// -----

// Fewer calls than the number says.

// CHECK: error: the forward has no call 1 in scope 'second'
func.func @fewer_calls(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32> loc("first/tanh")
  %1 = call @f(%0) : (tensor<4xf32>) -> tensor<4xf32> loc("second")
  return %1 : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// Calls in the backward that do not match those in the forward.

// CHECK: error: scope 'second' has 2 calls in the forward and 1 in the backward, expected as many
// CHECK-NEXT: name the scopes of the layers with jax.named_scope
func.func @other_calls(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32> loc("first/tanh")
  %1 = call @f(%0) : (tensor<4xf32>) -> tensor<4xf32> loc("jvp(second)")
  %2 = call @f(%1) : (tensor<4xf32>) -> tensor<4xf32> loc("jvp(second)")
  %3 = call @f(%2) : (tensor<4xf32>) -> tensor<4xf32> loc("transpose(jvp(second))")
  return %3 : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// Scopes in two functions.

// CHECK: error: scope 'second#1' is not in the same function or loop as 'first'
// CHECK-NEXT: mark stages where they are written, with jaxpp.mark_stage_end
func.func @two_functions(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32> loc("first/tanh")
  return %0 : tensor<4xf32>
}
func.func private @g(%x: tensor<4xf32>) -> tensor<4xf32> {
  %1 = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("second")
  %2 = call @f(%1) : (tensor<4xf32>) -> tensor<4xf32> loc("second")
  return %2 : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// Scopes in the wrong order.

// CHECK: error: scope 'first' reads a value of 'second#1', which stands after it
// CHECK-NEXT: give them in the forward's order
func.func @order(%x: tensor<4xf32>) -> tensor<4xf32> {
  %1 = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("second")
  %2 = call @f(%1) : (tensor<4xf32>) -> tensor<4xf32> loc("second")
  %3 = stablehlo.tanh %2 : tensor<4xf32> loc("first/tanh")
  return %3 : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// One scope inside of another.

// CHECK: error: an operation is in the scopes 'first' and 'second#1', expected it in one
// CHECK-NEXT: give scopes that do not contain one another
func.func @nested(%x: tensor<4xf32>) -> tensor<4xf32> {
  %1 = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32> loc("first/second")
  %2 = call @f(%1) : (tensor<4xf32>) -> tensor<4xf32> loc("first/second")
  return %2 : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// A scope that ends the forward.

// CHECK: error: no operation of the forward reads a value of scope 'second#1' after it
// CHECK-NEXT: the last stage needs no scope; mark a loop over layers with jaxpp.mark_stage_end
func.func @last(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32> loc("first/tanh")
  %1 = call @f(%0) : (tensor<4xf32>) -> tensor<4xf32> loc("second")
  %2 = call @f(%1) : (tensor<4xf32>) -> tensor<4xf32> loc("second")
  return %2 : tensor<4xf32>
}
func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  return %x : tensor<4xf32>
}

// -----

// A module that has marks.

// CHECK: error: mark-stages found a stage mark
// CHECK-NEXT: mark a module in one way alone
func.func @marked(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
