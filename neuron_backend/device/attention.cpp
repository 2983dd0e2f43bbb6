// Which form of scaled_dot_product_attention torch takes for the device: the one that is a single program, where it can.
#include "memory.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>

#include <optional>

namespace at::native {
namespace {

// What neuron_backend.lowering.attention computes, and torch's derivative of it, which has none of the mask.
bool in_one_piece(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout) {
  for (const auto* each : {&query, &key, &value}) {
    if (each->dim() != 4 || each->numel() == 0 || each->layout() != kStrided || each->scalar_type() != query.scalar_type() ||
        !at::isFloatingType(each->scalar_type()) || each->size(3) != query.size(3) || each->size(0) != query.size(0)) {
      return false;
    }
  }
  const bool heads = key.size(1) == value.size(1) && query.size(1) % key.size(1) == 0;
  return heads && dropout == 0 && !(mask && mask->defined() && mask->requires_grad());
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
