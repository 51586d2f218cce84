// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir --pipeline mpmd --stop-after unroll-steps | jaxpp-opt -p export-shardy-mpmd | jaxpp-opt -p import-shardy-mpmd | filecheck %s
// RUN: jaxpp-opt %S/../Inputs/gpt_data.mlir --pipeline mpmd --stop-after unroll-steps | jaxpp-opt -p export-shardy-mpmd,import-shardy-mpmd,insert-transfers,plan-buffers,verify-program | filecheck %s --check-prefix=PROGRAM

// A GPT that was exported comes back with its tasks, and `verify-program` proves it as before.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[ZERO:.*]] = stablehlo.constant dense<0>
// CHECK:         call @forward_0({{.*}}%[[ZERO]]{{.*}}) {jaxpp.mesh = 0 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 0 : i64}
// CHECK:         call @forward_1({{.*}}) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK:         call @backward_1({{.*}}) {jaxpp.mesh = 1 : i64, jaxpp.microbatch = 0 : i64, jaxpp.stage = 1 : i64}
// CHECK-NOT:     mpmd.
// CHECK:       func.func private @forward_0({{.*}}attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64}

// PROGRAM-LABEL: func.func public @mesh_0(
// PROGRAM-SAME:      jaxpp.bytes = {peak = {{[0-9]+}} : i64}
// PROGRAM:       func.func public @mesh_1(
