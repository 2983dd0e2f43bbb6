// Tensors that the device does not have: where one would be made, and in each of their operators, it is said so in one
// sentence.
#include "memory.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_nested_tensor_from_tensor_list_native.h>
#include <torch/library.h>

namespace neuron {
namespace {

struct Kind {
  const char* name;
  const char* dense;  // how to make a tensor of this kind one that the device has
};

template <c10::DispatchKey key>
Kind kind() {
  switch (key) {
    case c10::DispatchKey::SparsePrivateUse1:
      return {"sparse (COO) tensors", "to_dense()"};
    case c10::DispatchKey::SparseCsrPrivateUse1:
      return {"sparse compressed (CSR, CSC, BSR, BSC) tensors", "to_dense()"};
    case c10::DispatchKey::QuantizedPrivateUse1:
      return {"quantized tensors", "dequantize()"};
    default:
      return {"nested tensors of layout torch.strided", "to_padded_tensor(), or layout=torch.jagged"};
  }
}

template <c10::DispatchKey key>
void refuse(const std::string& name) {
  C10_THROW_ERROR(
      NotImplementedError,
      c10::str(
          "device 'neuron' has no ", kind<key>().name, " (in ", name, "): make them dense first (", kind<key>().dense,
          "), or keep them on the CPU"));
}

template <c10::DispatchKey key>
void refuse_call(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* /*stack*/) {
  refuse<key>(op.schema().name());
}

#define NEURON_REFUSE(key)                                                                            \
  TORCH_LIBRARY_IMPL(_, key, m) {                                                                     \
    m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_call<c10::DispatchKey::key>>());     \
  }
NEURON_REFUSE(SparsePrivateUse1)
NEURON_REFUSE(SparseCsrPrivateUse1)
NEURON_REFUSE(QuantizedPrivateUse1)
NEURON_REFUSE(NestedTensorPrivateUse1)
#undef NEURON_REFUSE

// Torch has a kernel of its own for these, which wins over a fallback and asks no device.
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  for (const char* name :
       {"_to_copy", "zeros", "empty_like", "sparse_compressed_tensor.comp_plain_value",
        "sparse_compressed_tensor.comp_plain_value_size", "_sparse_compressed_tensor_unsafe",
        "_sparse_compressed_tensor_with_dims"}) {
    m.impl(
        name, torch::CppFunction::makeFromBoxedFunction<&refuse_call<c10::DispatchKey::SparseCsrPrivateUse1>>());
  }
}

at::Tensor nested_from_list(
    at::TensorList list, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<at::Device> device, std::optional<bool> pin) {
  const auto place = device ? *device : list.empty() ? at::Device(at::kCPU) : list[0].device();
  if (place.type() == kNeuron) {
    refuse<c10::DispatchKey::NestedTensorPrivateUse1>("aten::_nested_tensor_from_tensor_list");
  }
  return at::native::_nested_tensor_from_tensor_list(list, dtype, layout, device, pin);
}

// The list may lie on the host, and name the device as the place to go to.
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_nested_tensor_from_tensor_list", nested_from_list);
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_tensor_from_tensor_list", nested_from_list);
  m.impl("_nested_tensor_from_mask", [](const at::Tensor&, const at::Tensor&, bool) -> at::Tensor {
    refuse<c10::DispatchKey::NestedTensorPrivateUse1>("aten::_nested_tensor_from_mask");
    return {};
  });
  // By this torch.nn.TransformerEncoder decides whether it leaves its padding out or computes it too.
  m.impl("_nested_tensor_from_mask_left_aligned", [](const at::Tensor&, const at::Tensor&) { return false; });
}

}  // namespace
}  // namespace neuron
