// RUN: jaxpp-opt %s --split-input-file -p "find-microbatch-loop{schedule=gpipe meshes=2}" | filecheck %s

// What a body advances by constants counts from a constant, by one addition. The first counter starts from an argument, which
// the body adds, and so does what follows the loop. It is advanced in both stages, through a mark and a wider integer: by 3, 4
// and -2. The mark still sends it. The second one starts from a constant, and is advanced by 100 and -95.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[START:.*]]: tensor<ui32>, %[[X:.*]]: tensor<f32>)
// CHECK-DAG:     %[[SEVEN:.*]] = stablehlo.constant dense<7> : tensor<i8>
// CHECK-DAG:     %[[ZERO:.*]] = stablehlo.constant dense<0> : tensor<ui32>
// CHECK:         %[[LOOP:.*]]:4 = stablehlo.while(%{{.*}} = %{{.*}}, %[[N:.*]] = %[[ZERO]], %[[M:.*]] = %[[SEVEN]], %{{.*}} = %{{.*}})
// CHECK-SAME:        indices = array<i64: 0, 1, 2>, inferred, length = 3 : i64,
// CHECK-SAME:        starts = array<i64: 0, 0, 7>, steps = array<i64: 1, 5, 5>}
// CHECK:         do {
// CHECK-NEXT:      %[[NOW:.*]] = stablehlo.add %[[START]], %[[N]] : tensor<ui32>
// CHECK:           %[[NEXT:.*]] = stablehlo.add %{{.*}}, %[[NOW]] : tensor<ui32>
// CHECK:           %[[MARK:.*]]:2 = stablehlo.optimization_barrier {{.*}} %{{.*}}, %[[NEXT]] : tensor<f32>, tensor<ui32>
// CHECK:           stablehlo.convert %[[MARK]]#1 : (tensor<ui32>) -> tensor<i64>
// CHECK:           %[[FIVE:.*]] = stablehlo.constant dense<5> : tensor<ui32>
// CHECK:           %[[N1:.*]] = stablehlo.add %[[N]], %[[FIVE]] : tensor<ui32>
// CHECK:           %[[FIVE_8:.*]] = stablehlo.constant dense<5> : tensor<i8>
// CHECK:           %[[M1:.*]] = stablehlo.add %[[M]], %[[FIVE_8]] : tensor<i8>
// CHECK:           stablehlo.return %{{.*}}, %[[N1]], %[[M1]], %{{.*}} : tensor<i32>, tensor<ui32>, tensor<i8>, tensor<f32>
// CHECK:         %[[AFTER:.*]] = stablehlo.add %[[START]], %[[LOOP]]#1 : tensor<ui32>
// CHECK:         return %[[AFTER]], %[[LOOP]]#2, %[[LOOP]]#3
func.func public @main(%start: tensor<ui32>, %x: tensor<f32>) -> (tensor<ui32>, tensor<i8>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %seven = stablehlo.constant dense<7> : tensor<i8>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0:4 = stablehlo.while(%i = %first, %n = %start, %m = %seven, %sum = %zero)
      : tensor<i32>, tensor<ui32>, tensor<i8>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %three = stablehlo.constant dense<3> : tensor<ui32>
    %n0 = stablehlo.add %three, %n : tensor<ui32>
    %f0 = stablehlo.convert %n0 : (tensor<ui32>) -> tensor<f32>
    %y = stablehlo.multiply %x, %f0 : tensor<f32>
    %mark:2 = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %y, %n0 : tensor<f32>, tensor<ui32>
    %wide = stablehlo.convert %mark#1 : (tensor<ui32>) -> tensor<i64>
    %four = stablehlo.constant dense<4> : tensor<i64>
    %n1 = stablehlo.add %wide, %four : tensor<i64>
    %n2 = stablehlo.convert %n1 : (tensor<i64>) -> tensor<ui32>
    %two = stablehlo.constant dense<2> : tensor<ui32>
    %n3 = stablehlo.subtract %n2, %two : tensor<ui32>
    %up = stablehlo.constant dense<100> : tensor<i8>
    %m0 = stablehlo.add %m, %up : tensor<i8>
    %down = stablehlo.constant dense<-95> : tensor<i8>
    %m1 = stablehlo.add %m0, %down : tensor<i8>
    %z = stablehlo.sine %mark#0 : tensor<f32>
    %s = stablehlo.add %sum, %z : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n3, %m1, %s : tensor<i32>, tensor<ui32>, tensor<i8>, tensor<f32>
  }
  return %0#1, %0#2, %0#3 : tensor<ui32>, tensor<i8>, tensor<f32>
}

// -----

// Numbers of 64 bits wrap around like others: the start is 2 to the 64 less 1, the step 2 to the 64 less 2.

// CHECK-LABEL: func.func public @main(
// CHECK:         indices = array<i64: 0, 1>,
// CHECK-SAME:        starts = array<i64: 0, -1>, steps = array<i64: 1, -2>}
func.func public @main(%x: tensor<f32>) -> (tensor<ui64>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %start = stablehlo.constant dense<18446744073709551615> : tensor<ui64>
  %0:3 = stablehlo.while(%i = %first, %n = %start, %h = %x) : tensor<i32>, tensor<ui64>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %mark = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %h : tensor<f32>
    %y = stablehlo.sine %mark : tensor<f32>
    %step = stablehlo.constant dense<18446744073709551614> : tensor<ui64>
    %n0 = stablehlo.add %n, %step : tensor<ui64>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %n0, %y : tensor<i32>, tensor<ui64>, tensor<f32>
  }
  return %0#1, %0#2 : tensor<ui64>, tensor<f32>
}

// -----

// What does not count stays: a float, whose sums are rounded; a number that loses bits on its way; one that is advanced by
// another number than a constant; one bit; a number that is subtracted from a constant.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[F:.*]]: tensor<f32>, %[[N:.*]]: tensor<i32>, %[[B:.*]]: tensor<i1>)
// CHECK:         stablehlo.while(%{{.*}} = %{{.*}}, %{{.*}} = %[[F]], %{{.*}} = %[[N]], %{{.*}} = %[[N]], %{{.*}} = %[[B]], %{{.*}} = %[[N]], %{{.*}} = %[[F]])
// CHECK-SAME:        indices = array<i64: 0>,
func.func public @main(%f: tensor<f32>, %n: tensor<i32>, %b: tensor<i1>) -> (tensor<f32>, tensor<i32>, tensor<i32>, tensor<i1>, tensor<i32>, tensor<f32>) {
  %first = stablehlo.constant dense<0> : tensor<i32>
  %0:7 = stablehlo.while(%i = %first, %float = %f, %narrow = %n, %any = %n, %bit = %b, %back = %n, %sum = %f)
      : tensor<i32>, tensor<f32>, tensor<i32>, tensor<i32>, tensor<i1>, tensor<i32>, tensor<f32>
  cond {
    %limit = stablehlo.constant dense<3> : tensor<i32>
    %1 = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %mark = stablehlo.optimization_barrier {jaxpp.boundary = {stage = 0 : i64, phase = "forward", name = ""}} %float : tensor<f32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %one_f = stablehlo.constant dense<1.0> : tensor<f32>
    %one_8 = stablehlo.constant dense<1> : tensor<i8>
    %true = stablehlo.constant dense<true> : tensor<i1>
    %sine = stablehlo.sine %mark : tensor<f32>
    %float1 = stablehlo.add %float, %one_f : tensor<f32>
    %sum1 = stablehlo.add %sum, %sine : tensor<f32>
    %less = stablehlo.convert %narrow : (tensor<i32>) -> tensor<i8>
    %less1 = stablehlo.add %less, %one_8 : tensor<i8>
    %narrow1 = stablehlo.convert %less1 : (tensor<i8>) -> tensor<i32>
    %any1 = stablehlo.add %any, %n : tensor<i32>
    %bit1 = stablehlo.add %bit, %true : tensor<i1>
    %back1 = stablehlo.subtract %one, %back : tensor<i32>
    %next = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %next, %float1, %narrow1, %any1, %bit1, %back1, %sum1 : tensor<i32>, tensor<f32>, tensor<i32>, tensor<i32>, tensor<i1>, tensor<i32>, tensor<f32>
  }
  return %0#1, %0#2, %0#3, %0#4, %0#5, %0#6 : tensor<f32>, tensor<i32>, tensor<i32>, tensor<i1>, tensor<i32>, tensor<f32>
}
