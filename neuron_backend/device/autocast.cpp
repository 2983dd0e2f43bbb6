// torch.autocast("neuron"): each operator gets the policy that torch itself has for accelerators.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace neuron {
namespace {

// The names that torch's lists of operators are written in.
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define NEURON_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define NEURON_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define NEURON_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define NEURON_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

  AT_FORALL_LOWER_PRECISION_FP(NEURON_LOWER_PRECISION)
  AT_FORALL_FP32(NEURON_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(NEURON_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(NEURON_PROMOTE)

#undef NEURON_LOWER_PRECISION
#undef NEURON_FP32
#undef NEURON_FP32_SET_OPT_DTYPE
#undef NEURON_PROMOTE

  m.impl("binary_cross_entropy", [](const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t)
      -> at::Tensor {
    TORCH_CHECK(
        false,
        "binary_cross_entropy is unsafe under autocast: its input may be a sigmoid in low precision. Combine the two "
        "in binary_cross_entropy_with_logits or BCEWithLogitsLoss, which are safe.");
  });
}

}  // namespace
}  // namespace neuron
