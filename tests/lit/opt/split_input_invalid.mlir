// RUN: not jaxpp-opt %s -p inline-calls --split-input-file 2>&1 | filecheck %s

// What is wrong in one part does not hide the next; lines are counted in the whole file; no part is printed.

// CHECK-NOT: func.func
// CHECK: split_input_invalid.mlir:8:3: error: Dialect `nobody' not found for custom op 'nobody.knows'
func.func @main() {
  nobody.knows
  return
}

// -----

func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}

// -----

// CHECK: split_input_invalid.mlir:{{.*}}: error: type of return operand 0 ('tensor<2xf32>') doesn't match
func.func @main(%x: tensor<2xf32>) -> tensor<3xf32> {
  return %x : tensor<2xf32>
}
