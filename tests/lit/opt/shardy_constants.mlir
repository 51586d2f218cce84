// RUN: jaxpp-opt %s -p sdy-propagation-pipeline --validate 2>&1 | filecheck %s

// The constants of Shardy's propagation may have complex numbers, which jaxlib prints, but can't read.

// CHECK: validated: 1 results agree
// CHECK: sdy.constant {sdy.sharding = {{.*}}} dense<(0.000000e+00,1.000000e+00)> : tensor<8x4xcomplex<f32>>
sdy.mesh @mesh = <["data"=2]>
func.func public @main(%x: tensor<8x4xcomplex<f32>> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
    -> tensor<8x4xcomplex<f32>> {
  %0 = stablehlo.constant dense<(0.0, 1.0)> : tensor<8x4xcomplex<f32>>
  %1 = stablehlo.multiply %x, %0 : tensor<8x4xcomplex<f32>>
  return %1 : tensor<8x4xcomplex<f32>>
}
