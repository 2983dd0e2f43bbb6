func.func @main(%image: tensor<1x3x8x8xf32>, %kernel: tensor<4x3x3x3xf32>) -> tensor<1x4x8x8xf32> {
  %result = stablehlo.convolution(%image, %kernel) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<1x4x8x8xf32>
  return %result : tensor<1x4x8x8xf32>
}
