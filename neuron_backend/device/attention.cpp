// Which form of scaled_dot_product_attention torch takes for the device: the one that is a single program, where it can.
#include "memory.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>

#include <optional>

namespace at::native {
namespace {

// A size that Dynamo follows as a symbol must not be asked for; what it traces takes the other form anyhow.
bool fits(const Tensor& tensor, const Tensor& query) {
  return !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && tensor.dim() == 4 && tensor.numel() > 0 &&
      tensor.layout() == kStrided && at::isFloatingType(tensor.scalar_type()) &&
      tensor.scalar_type() == query.scalar_type() && tensor.size(3) == query.size(3) && tensor.size(0) == query.size(0);
}

// What neuron_backend.lowering.attention computes, and torch's derivative of it, which has none of the mask.
bool in_one_piece(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout) {
  return fits(query, query) && fits(key, query) && fits(value, query) && key.size(1) == value.size(1) &&
      query.size(1) % key.size(1) == 0 && dropout == 0 && !(mask && mask->defined() && mask->requires_grad());
}

int64_t choose(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
    bool /*is_causal*/, std::optional<double> /*scale*/, bool /*enable_gqa*/) {
  const auto& context = at::globalContext();
  auto choice = at::SDPBackend::error;
  if (context.userEnabledFlashSDP() && in_one_piece(query, key, value, mask, dropout)) {
    choice = at::SDPBackend::flash_attention;
  } else if (context.userEnabledMathSDP()) {
    choice = at::SDPBackend::math;
  }
  return static_cast<int64_t>(choice);
}

}  // namespace

REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose)

}  // namespace at::native
