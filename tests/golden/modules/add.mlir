func.func @main(%left: tensor<2x3xf32>, %right: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %sum = stablehlo.add %left, %right : tensor<2x3xf32>
  return %sum : tensor<2x3xf32>
}
