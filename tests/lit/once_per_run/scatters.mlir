// RUN: jaxpp-opt %s --split-input-file -p once-per-run | filecheck %s

// Two backwards of stage 0, a forward of the same stage between them, are one run: one scatter. After a task of stage 1 another
// run begins with zeros of its own, and its scatter adds to what the first one left. What mesh 1 has is added up shard by shard.
// No sum over the devices is left in @main.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[X:[^ :]*]]: tensor<4xf32>
// CHECK-NEXT:    %[[Z:.*]] = call @zeros_0() {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[A:.*]] = call @backward_0(%[[X]], %[[Z]])
// CHECK-NEXT:    call @forward_0(
// CHECK-NEXT:    %[[B:.*]] = call @backward_0(%[[X]], %[[A]])
// CHECK-NEXT:    %[[S:.*]] = call @scatter_0(%[[B]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    call @forward_1(
// CHECK-NEXT:    %[[Y:.*]] = call @zeros_0() {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[C:.*]] = call @backward_0(%[[X]], %[[Y]])
// CHECK-NEXT:    %[[T:.*]] = call @scatter_1(%[[C]], %[[S]]) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[W:.*]] = call @zeros_0() {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[D:.*]] = call @backward_0(%[[X]], %[[W]])
// CHECK-NEXT:    %[[U:.*]] = call @scatter_0(%[[D]]) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[G:.*]] = stablehlo.add %[[T]], %[[U]] {{.*}}<@mesh, [{"data"}]>
// CHECK-NEXT:    %[[N:.*]] = stablehlo.negate %[[G]]
// CHECK-NEXT:    return %[[N]]
// CHECK-LABEL: func.func private @zeros_0() -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "scatter"}
// CHECK-NEXT:    %[[ZEROS:.*]] = stablehlo.constant {{.*}}dense<0.000000e+00> : tensor<2x4xf32>
// CHECK-NEXT:    return %[[ZEROS]]
// CHECK-LABEL: func.func private @scatter_0(
// CHECK-SAME:      %[[P:[^ :]*]]: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>})
// CHECK-NEXT:    %[[ZERO:.*]] = stablehlo.constant
// CHECK-NEXT:    %[[R:.*]] = stablehlo.reduce(%[[P]] init: %[[ZERO]]) applies stablehlo.add across dimensions = [0]
// CHECK-NOT:     jaxpp.per_run
// CHECK:         return %[[R]]
// CHECK-LABEL: func.func private @scatter_1(
// CHECK-SAME:      %[[P:[^ :]*]]: tensor<2x4xf32> {{.*}}, %[[TOTAL:[^ :]*]]: tensor<4xf32>
// CHECK:         %[[R:.*]] = stablehlo.reduce(%[[P]]
// CHECK-NEXT:    %[[SUM:.*]] = stablehlo.add %[[TOTAL]], %[[R]] {{.*}}<@mesh, [{"data"}]>
// CHECK-NEXT:    return %[[SUM]]
module attributes {jaxpp.meshes = 2 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %zeros = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} dense<0.0> : tensor<2x4xf32>
    %a = call @backward_0(%x, %zeros) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %f = call @forward_0(%x) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 2 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %b = call @backward_0(%x, %a) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 1 : i64} : (tensor<4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %g = call @forward_1(%x) {jaxpp.mesh = 0 : i64, jaxpp.stage = 1 : i64, jaxpp.microbatch = 2 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %c = call @backward_0(%x, %b) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 2 : i64} : (tensor<4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %others = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} dense<0.0> : tensor<2x4xf32>
    %d = call @backward_0(%x, %others) {jaxpp.mesh = 1 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 3 : i64} : (tensor<4xf32>, tensor<2x4xf32>) -> tensor<2x4xf32>
    %all = stablehlo.add %c, %d {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : tensor<2x4xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %r = stablehlo.reduce(%all init: %zero) applies stablehlo.add across dimensions = [0] {jaxpp.per_run, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}]>]>} : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
    %n = stablehlo.negate %r : tensor<4xf32>
    return %n : tensor<4xf32>
  }
  func.func private @forward_0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 0 : i64} {
    return %x : tensor<4xf32>
  }
  func.func private @forward_1(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    return %x : tensor<4xf32>
  }
  func.func private @backward_0(%x: tensor<4xf32>, %sum: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %y = stablehlo.broadcast_in_dim %x, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
    %s = stablehlo.add %sum, %y : tensor<2x4xf32>
    return %s : tensor<2x4xf32>
  }
}

// -----

// One sum of two summands of the same tasks: both are scattered behind each run, and both of a later run are added to what the
// first one left.

// CHECK-LABEL: func.func public @main(
// CHECK:         %[[A:.*]]:2 = call @backward_0(
// CHECK-NEXT:    %[[S:.*]]:2 = call @scatter_0(%[[A]]#0, %[[A]]#1)
// CHECK:         %[[B:.*]]:2 = call @backward_0(
// CHECK-NEXT:    %[[T:.*]]:2 = call @scatter_1(%[[B]]#0, %[[B]]#1, %[[S]]#0, %[[S]]#1)
// CHECK-NEXT:    %[[G:.*]] = stablehlo.add %[[T]]#0, %[[T]]#1
// CHECK-NEXT:    return %[[G]]
// CHECK-LABEL: func.func private @scatter_1(
// CHECK-SAME:      %[[P:[^ :]*]]: tensor<2x4xf32> {{.*}}, %[[Q:[^ :]*]]: tensor<2x4xf32> {{.*}}, %[[C:[^ :]*]]: tensor<4xf32> {{.*}}, %[[D:[^ :]*]]: tensor<4xf32>
// CHECK:         %[[R:.*]] = stablehlo.reduce(%[[P]]
// CHECK-NEXT:    %[[FIRST:.*]] = stablehlo.add %[[C]], %[[R]]
// CHECK:         %[[U:.*]] = stablehlo.reduce(%[[Q]]
// CHECK-NEXT:    %[[SECOND:.*]] = stablehlo.add %[[D]], %[[U]]
// CHECK-NEXT:    return %[[FIRST]], %[[SECOND]]
module attributes {jaxpp.meshes = 1 : i64, mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["mpmd"=1, "data"=2]>
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %zeros = stablehlo.constant {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} dense<0.0> : tensor<2x4xf32>
    %a:2 = call @backward_0(%x, %zeros, %zeros) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 0 : i64} : (tensor<4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    %f = call @forward_1(%x) {jaxpp.mesh = 0 : i64, jaxpp.stage = 1 : i64, jaxpp.microbatch = 1 : i64} : (tensor<4xf32>) -> tensor<4xf32>
    %b:2 = call @backward_0(%f, %a#0, %a#1) {jaxpp.mesh = 0 : i64, jaxpp.stage = 0 : i64, jaxpp.microbatch = 1 : i64} : (tensor<4xf32>, tensor<2x4xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x4xf32>)
    %all = stablehlo.add %b#0, %b#1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}, {}]>]>} : tensor<2x4xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %r = stablehlo.reduce(%all init: %zero) applies stablehlo.add across dimensions = [0] {jaxpp.per_run, sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"data"}]>]>} : (tensor<2x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %r : tensor<4xf32>
  }
  func.func private @forward_1(%x: tensor<4xf32>) -> tensor<4xf32> attributes {jaxpp.kind = "forward", jaxpp.stage = 1 : i64} {
    return %x : tensor<4xf32>
  }
  func.func private @backward_0(%x: tensor<4xf32>, %one: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, %other: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> (tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) attributes {jaxpp.kind = "backward", jaxpp.stage = 0 : i64} {
    %y = stablehlo.broadcast_in_dim %x, dims = [1] : (tensor<4xf32>) -> tensor<2x4xf32>
    %s = stablehlo.add %one, %y : tensor<2x4xf32>
    %t = stablehlo.add %other, %y : tensor<2x4xf32>
    return %s, %t : tensor<2x4xf32>, tensor<2x4xf32>
  }
}
