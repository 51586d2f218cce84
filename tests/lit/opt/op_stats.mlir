// RUN: jaxpp-opt %s --op-stats | filecheck %s
// RUN: jaxpp-opt %s --op-stats=json | filecheck %s --check-prefix=JSON

// Rows are tasks; a function that is called counts in the total as often as it is called.

// CHECK: task                operations  FLOPs  bytes in  bytes out  residual bytes
// CHECK-NEXT: forward of stage 0           2      4        16         32              16
// CHECK-NEXT: backward of stage 0          2      4        32         16               0
// CHECK-NEXT: @main                        5     16        16         16               0
// CHECK-NEXT: total                        9     16        16         16              16
// CHECK: 3 func.call
// CHECK: 3 func.return
// CHECK: 2 stablehlo.add
// JSON: "task": "forward of stage 0",
// JSON: "residual_bytes": 16,
// JSON: "stablehlo.sine": 1
func.func private @f(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.sine %x : tensor<4xf32>
  return %0, %x : tensor<4xf32>, tensor<4xf32>
}
func.func private @b(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0:2 = call @f(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %1 = call @b(%0#1, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2:2 = call @f(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  %3 = stablehlo.add %1, %2#0 : tensor<4xf32>
  return %3 : tensor<4xf32>
}
