func.func @main(%x: tensor<5xf32>) -> tensor<5xf32> {
  %y = chlo.erf %x : tensor<5xf32> -> tensor<5xf32>
  return %y : tensor<5xf32>
}
