// RUN: not jaxpp-opt %s --split-input-file -p unroll-steps 2>&1 | filecheck %s

// CHECK: error: unknown form of jaxpp.train_loop: {steps = 0 : i64}
// CHECK-NEXT: it is a dictionary: {steps = 2 : i64, state = 4 : i64, delay = 0 : i64, schedule = ""}
module attributes {jaxpp.meshes = 1 : i64, jaxpp.train_loop = {steps = 0 : i64}} {
  func.func public @main() {
    return
  }
}
