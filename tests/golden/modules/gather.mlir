func.func @main(%table: tensor<10x4xf16>, %rows: tensor<6xi64>) -> tensor<6x4xf16> {
  %picked = "stablehlo.gather"(%table, %rows) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4>}> : (tensor<10x4xf16>, tensor<6xi64>) -> tensor<6x4xf16>
  return %picked : tensor<6x4xf16>
}
