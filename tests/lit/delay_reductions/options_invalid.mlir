// RUN: not jaxpp-opt %s -p "delay-reductions{gather-weights=never}" 2>&1 | filecheck %s

// CHECK: pass 'delay-reductions': gather_weights is 'never', expected one of microbatch, chunk, ahead, step
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  return %x : tensor<f32>
}
