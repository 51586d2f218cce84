// RUN: jaxpp-opt %S/../Inputs/gpt.mlir --pipeline mpmd | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir --pipeline mpmd | filecheck %s --check-prefix=DATA

// The whole pipeline makes a sound program of the step of a GPT, on submeshes of one device and of two. Under 1F1B two
// microbatches wait on mesh 0, one on mesh 1.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK-SAME:      attributes {jaxpp.bytes = {peak = 16184 : i64}, jaxpp.mesh = 0 : i64} {
// CHECK-LABEL: func.func public @mesh_1(
// CHECK-SAME:      attributes {jaxpp.bytes = {peak = 12168 : i64}, jaxpp.mesh = 1 : i64} {

// The bytes are those of a device: of two, each has half of the activations, and one of the summands of each accumulator.

// DATA-LABEL: func.func public @mesh_0(
// DATA-SAME:      attributes {jaxpp.bytes = {peak = 13480 : i64}, jaxpp.mesh = 0 : i64} {
// DATA-LABEL: func.func public @mesh_1(
// DATA-SAME:      attributes {jaxpp.bytes = {peak = 10712 : i64}, jaxpp.mesh = 1 : i64} {
