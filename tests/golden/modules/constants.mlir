func.func @main() -> (tensor<3xf64>, tensor<2xi64>, tensor<f32>, tensor<4xi1>, tensor<2xui8>) {
  %exact = stablehlo.constant dense<[0.1, -0.0, 1.0e-310]> : tensor<3xf64>
  %large = stablehlo.constant dense<[9007199254740993, -9223372036854775808]> : tensor<2xi64>
  %nan = stablehlo.constant dense<0x7FC00000> : tensor<f32>
  %mask = stablehlo.constant dense<[true, false, true, true]> : tensor<4xi1>
  %bytes = stablehlo.constant dense<[0, 255]> : tensor<2xui8>
  return %exact, %large, %nan, %mask, %bytes : tensor<3xf64>, tensor<2xi64>, tensor<f32>, tensor<4xi1>, tensor<2xui8>
}
