// Tensors that the device does not have: each of their operators is refused in one sentence.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace neuron {
namespace {

template <c10::DispatchKey key>
const char* kind() {
  switch (key) {
    case c10::DispatchKey::SparsePrivateUse1:
      return "sparse (COO) tensors";
    case c10::DispatchKey::SparseCsrPrivateUse1:
      return "sparse compressed tensors";
    case c10::DispatchKey::QuantizedPrivateUse1:
      return "quantized tensors";
    default:
      return "nested tensors of layout torch.strided";
  }
}

template <c10::DispatchKey key>
void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* /*stack*/) {
  C10_THROW_ERROR(
      NotImplementedError,
      c10::str(
          "device 'neuron' has no ", kind<key>(), " (in ", op.schema().name(),
          "): make them dense first (to_dense(), to_padded_tensor(), dequantize()), or keep them on the CPU"));
}

#define NEURON_REFUSE(key)                                                                       \
  TORCH_LIBRARY_IMPL(_, key, m) {                                                                \
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse<c10::DispatchKey::key>>());     \
  }
NEURON_REFUSE(SparsePrivateUse1)
NEURON_REFUSE(SparseCsrPrivateUse1)
NEURON_REFUSE(QuantizedPrivateUse1)
NEURON_REFUSE(NestedTensorPrivateUse1)
#undef NEURON_REFUSE

}  // namespace
}  // namespace neuron
