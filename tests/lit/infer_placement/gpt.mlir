// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals,outline-stages,unroll-microbatches,infer-placement | filecheck %s

// The optimizer of a GPT, AdamW with clipping by the global norm. The moments are on the mesh of their weight; the tied
// embedding and the counters are on both. Each mesh sums up its squares. The sum over all leaves goes once to mesh 1 and
// back, a scalar each way, as the weights do in the tree; the norm goes to mesh 1, and each mesh finds out whether it is too
// big, and updates its weights: the norm is a function of its own, so that neither mesh waits for the update of the other.
// The counters are computed on both meshes.

// CHECK-LABEL: func.func public @main(
// CHECK-SAME:      %[[DOWN:[^:]*]]: tensor<16x8xf32> {jax.buffer_donor = true, jaxpp.meshes = array<i64: 0>},
// CHECK-SAME:      tensor<16x8xf32> {jax.buffer_donor = true, jaxpp.meshes = array<i64: 1>},
// CHECK-SAME:      %[[EMBED:[^:]*]]: tensor<16x8xf32> {jax.buffer_donor = true, jaxpp.meshes = array<i64: 0, 1>},
// CHECK-SAME:      %[[COUNT:[^:]*]]: tensor<i32> {jax.buffer_donor = true, jaxpp.meshes = array<i64: 0, 1>
// CHECK-SAME:      -> (tensor<16x8xf32> {jax.result_info = "result[0][0]['blocks'][0]['down']", jaxpp.feeds = 0 : i64, jaxpp.meshes = array<i64: 0>}
// CHECK-SAME:      "result[0][0]['blocks'][1]['down']", jaxpp.feeds = 4 : i64, jaxpp.meshes = array<i64: 1>}
// CHECK-SAME:      "result[0][0]['embed']", jaxpp.feeds = 8 : i64, jaxpp.meshes = array<i64: 0, 1>}
// CHECK-SAME:      "result[0][1][1][0].mu['blocks'][1]['down']", jaxpp.feeds = 15 : i64, jaxpp.meshes = array<i64: 1>}
// CHECK-SAME:      "result[1]", jaxpp.meshes = array<i64: 1>})
// CHECK:         %[[ZEROS_0:.*]]:6 = call @before_0() {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[ZEROS_1:.*]]:5 = call @before_1() {jaxpp.mesh = 1 : i64}
// CHECK-COUNT-16: = call @{{(forward|backward)}}_
// CHECK:         %[[SUM_0:.*]] = call @after_0({{.*}}) {jaxpp.mesh = 0 : i64} : {{.*}} -> tensor<f32>
// CHECK-NEXT:    %[[COUNTS:.*]]:2 = call @after_0_1(%[[COUNT]], %{{[^,]*}}) {jaxpp.meshes = array<i64: 0, 1>} : (tensor<i32>, tensor<i32>) -> (tensor<i32>, tensor<i32>)
// CHECK-NEXT:    %[[SUMS_0:.*]]:2 = call @after_0_level_1({{.*}}) {jaxpp.mesh = 0 : i64} : {{.*}} -> (tensor<f32>, tensor<f32>)
// CHECK-NEXT:    %[[SUMS_1:.*]]:5 = call @after_1({{.*}}) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[SUM_1:.*]] = call @after_1_level_1(%[[SUM_0]], %[[SUMS_1]]#1, %[[SUMS_1]]#2, %[[SUMS_1]]#3, %[[SUMS_1]]#4) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    %[[NORM:.*]] = call @after_0_level_2(%[[SUM_1]], %[[SUMS_0]]#0, %[[SUMS_0]]#1) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[UPDATED_0:.*]]:18 = call @after_0_level_3(%[[NORM]], {{.*}}) {jaxpp.mesh = 0 : i64}
// CHECK-NEXT:    %[[UPDATED_1:.*]]:12 = call @after_1_level_2(%[[NORM]], {{.*}}) {jaxpp.mesh = 1 : i64}
// CHECK-NEXT:    return %[[UPDATED_0]]#0, {{.*}} %[[UPDATED_1]]#0, {{.*}} %[[COUNTS]]#0, {{.*}} %[[COUNTS]]#1, %[[SUMS_1]]#0 :
