// RUN: jaxpp-opt %s --pipeline mpmd --schedule gpipe --meshes 2 -o %t
// RUN: jaxpp-execute %t --reference %s --steps 2 2>&1 | filecheck %s
// RUN: jaxpp-execute %s --print | filecheck %s --check-prefix=PLAIN

// A program runs on a submesh for each mesh, and computes what the module computes by plain XLA.

// CHECK: the first step takes {{.*}} ms, then {{.*}} ms at the median of 1
// CHECK: result 0: float32[2] mean
// CHECK: 1 of 1 results agree with basic.mlir; largest difference
// PLAIN: result 0: float32[2] mean
// PLAIN-NEXT: [{{.*}} {{.*}}]
func.func public @main(%x: tensor<2xf32>, %n: tensor<4xf32>) -> tensor<2xf32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:2 = stablehlo.while(%i = %first, %sum = %x) : tensor<i32>, tensor<2xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %x : tensor<2xf32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m : tensor<2xf32>
    %z = stablehlo.cosine %y : tensor<2xf32>
    %s = stablehlo.add %sum, %z : tensor<2xf32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %s : tensor<i32>, tensor<2xf32>
  }
  return %0#1 : tensor<2xf32>
}
