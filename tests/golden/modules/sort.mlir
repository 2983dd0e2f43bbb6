func.func @main(%x: tensor<7xi32>) -> tensor<7xi32> {
  %sorted = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>):
    %less = stablehlo.compare LT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %less : tensor<i1>
  }) : (tensor<7xi32>) -> tensor<7xi32>
  return %sorted : tensor<7xi32>
}
