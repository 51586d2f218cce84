// RUN: jaxpp-opt %s --pipeline mpmd --schedule %S/../Inputs/1f1b.grid | filecheck %s
// RUN: jaxpp-opt %s --pipeline mpmd --schedule "kimi-k2{chunks=1}" --meshes 2 | filecheck %s
// RUN: jaxpp-opt %s -p 'find-microbatch-loop{schedule="gpipe{chunks=1}" meshes=2}' | filecheck %s --check-prefix=PASS
// RUN: jaxpp-opt %s --pipeline mpmd --schedule gpipe --meshes 2 --transport pair --gather-weights chunk --memory-limit 99 | filecheck %s
// RUN: not jaxpp-opt %s --pipeline mpmd --transport mail 2>&1 | filecheck %s --check-prefix=MAIL
// RUN: not jaxpp-opt %s --pipeline mpmd --schedule none.txt 2>&1 | filecheck %s --check-prefix=ERROR

// A schedule is a name, with or without options, or a file.

// CHECK-LABEL: func.func public @mesh_0
// CHECK-LABEL: func.func public @mesh_1
// MAIL: error: pipeline 'mpmd': --transport is 'mail', expected one of pull, device_put, pair
// PASS: schedule: gpipe
// ERROR: schedule.mlir:[[# @LINE + 3]]:10: error: none.txt: cannot read: No such file or directory
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:3 = stablehlo.while(%i = %first, %h = %x, %sum = %x) : tensor<i32>, tensor<f32>, tensor<f32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %m = stablehlo.sine %h : tensor<f32>
    %y = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %m : tensor<f32>
    %z = stablehlo.cosine %y : tensor<f32>
    %s = stablehlo.add %sum, %z : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %m, %s : tensor<i32>, tensor<f32>, tensor<f32>
  }
  return %0#2 : tensor<f32>
}
