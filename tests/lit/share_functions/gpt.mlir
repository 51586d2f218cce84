// RUN: jaxpp-opt %S/../Inputs/gpt.mlir -p inline-calls,find-microbatch-loop,assign-stages,place-residuals,outline-stages,unroll-microbatches,infer-placement,share-functions,insert-transfers,plan-buffers | filecheck %s

// A GPT of two stages: each updates four weights of the same shapes by one function, and stage 0 its embeddings by
// another. That comes first, since mesh 1 waits for the embedding. The functions that sum the squares of all gradients of
// a mesh, and those that make a few zeros, stay whole.

// CHECK-LABEL: func.func public @mesh_0(
// CHECK:         call @before_0(
// CHECK:         call @after_0(
// CHECK:         call @after_0_level_{{[0-9]}}_own(
// CHECK:         call @[[SHARED:after_0_level_[0-9]_shared]](
// CHECK-NOT:     call @after
// CHECK-LABEL: func.func public @mesh_1(
// CHECK:         call @before_1(
// CHECK:         call @after_1(
// CHECK:         call @[[SHARED]](
// CHECK-NOT:     call @after
// CHECK:         return
