// RUN: jaxpp-opt %S/../Inputs/gpt.mlir --pipeline mpmd | filecheck %s

// The step of a GPT whose whole state is on the devices: nothing is copied.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-NOT:     {{to_host|to_devices|pinned_host}}
