// RUN: jaxpp-opt %S/../Inputs/decoder.mlir -p inline-calls,find-microbatch-loop,unroll-loops | filecheck %s

// A decoder that scans over two slices, with two stages: the forward of both slices, then the backward of both in
// reverse, with no loop over slices.

// CHECK:         stablehlo.while
// CHECK-NOT:     stablehlo.while
// CHECK-COUNT-2: phase = "forward"{{.*}}jaxpp.slice = 0
// CHECK-COUNT-2: phase = "forward"{{.*}}jaxpp.slice = 1
// CHECK-COUNT-2: phase = "backward"{{.*}}jaxpp.slice = 1
// CHECK-COUNT-2: phase = "backward"{{.*}}jaxpp.slice = 0
// CHECK-NOT:     jaxpp.boundary
