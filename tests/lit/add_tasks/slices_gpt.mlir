// RUN: jaxpp-opt %S/../Inputs/decoder.mlir --pipeline mpmd | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt.mlir --pipeline mpmd | filecheck %s --check-prefix=WHOLE

// All slices of a stage call one function; what follows the last slice is the only other one. A model of whole
// sequences stays as it is.

// CHECK-LABEL: func.func public @mesh_1(
// CHECK-COUNT-4: call @{{(forward|backward)}}_1(
// CHECK-NOT:   func.func private @{{.*}}_slice_
// CHECK:       func.func private @forward_1_end(
// CHECK-NOT:   func.func private @{{.*}}_slice_

// WHOLE-NOT:   jaxpp.slice
