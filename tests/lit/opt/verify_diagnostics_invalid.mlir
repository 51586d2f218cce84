// RUN: jaxpp-opt %s -p verify-loop --split-input-file --verify-diagnostics
// RUN: not jaxpp-opt %s -p inline-calls --split-input-file --verify-diagnostics 2>&1 | filecheck %s

// Messages are compared with comments in the input.

// CHECK: verify_diagnostics_invalid.mlir:[[# @LINE + 1]]:1: error: expected error was not reported: no microbatch loop
// expected-error@below {{no microbatch loop}}
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  return %x : tensor<2xf32>
}

// -----

func.func @main() {
  nobody.knows // expected-error-re {{Dialect `nobody' not found for custom op '{{[a-z.]+}}'}}
  return
}
