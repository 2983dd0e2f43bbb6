func.func @main(%q: tensor<2x4x8xbf16>, %k: tensor<2x4x8xbf16>) -> tensor<2x4x4xbf16> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %scores = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x4x8xbf16>, tensor<2x4x8xbf16>) -> tensor<2x4x4xbf16>
  %wide = stablehlo.convert %scores : (tensor<2x4x4xbf16>) -> tensor<2x4x4xf32>
  %top = stablehlo.reduce(%wide init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<2x4x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %tops = stablehlo.broadcast_in_dim %top, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x4xf32>
  %shifted = stablehlo.subtract %wide, %tops : tensor<2x4x4xf32>
  %powers = stablehlo.exponential %shifted : tensor<2x4x4xf32>
  %total = stablehlo.reduce(%powers init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x4x4xf32>, tensor<f32>) -> tensor<2x4xf32>
  %totals = stablehlo.broadcast_in_dim %total, dims = [0, 1] : (tensor<2x4xf32>) -> tensor<2x4x4xf32>
  %weights = stablehlo.divide %powers, %totals : tensor<2x4x4xf32>
  %result = stablehlo.convert %weights : (tensor<2x4x4xf32>) -> tensor<2x4x4xbf16>
  return %result : tensor<2x4x4xbf16>
}
