// RUN: not jaxpp-opt %s -p "find-microbatch-loop{schedule=gpipe meshes=2},number-stages{cuts=2,2}" 2>&1 | filecheck %s
// RUN: not jaxpp-opt %s -p number-stages{cuts=1,0,1} 2>&1 | filecheck %s --check-prefix=EMPTY
// RUN: not jaxpp-opt %s --pipeline mpmd --cuts 1,1 --schedule 1f1b --meshes 3 2>&1 | filecheck %s --check-prefix=SCHEDULE

// CHECK: cuts_invalid.mlir:15:10: error: the cuts 2, 2 are of 4 layers, found 2 stage marks
// CHECK-NEXT: mark the end of every layer (mark_stage_end), and give cuts that add up to 2

// EMPTY: cuts: expected the layers of each stage, such as '5,5,4,2', found '1,0,1'

// SCHEDULE: cuts_invalid.mlir:15:10: error: the cuts are of 2 stages, the schedule 1f1b has 3
// SCHEDULE-NEXT: give the layers of each of 3 stages, or a schedule of 2
func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>

  %0:2 = stablehlo.while(%i = %c0, %x = %a) : tensor<i32>, tensor<4xf32>
      attributes {jaxpp.microbatch_loop = {length = 3 : i64, schedule = ""}}
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %y0 = stablehlo.sine %x : tensor<4xf32>
    %m0 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %y0 : tensor<4xf32>
    %y1 = stablehlo.cosine %m0 : tensor<4xf32>
    %m1 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 1 : i64, phase = "forward", name = ""}} %y1 : tensor<4xf32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %m1 : tensor<i32>, tensor<4xf32>
  }
  return %0#1 : tensor<4xf32>
}
