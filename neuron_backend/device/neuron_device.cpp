// PrivateUse1 device "neuron": the operators that deal with storage, and what Python reaches of this library.
//
// All is reached through the dispatcher (torch.ops.neuron_device.*), so that one file serves every CPython with the same
// torch. All other operators of the device are in neuron_backend.eager, and those seen before in warm.cpp.
#include "describe.h"
#include "generator.h"
#include "hooks.h"
#include "memory.h"
#include "transfer.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <vector>

namespace neuron {
namespace {

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator())
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Start {
  Start() {
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    pthread_atfork(nullptr, nullptr, &after_fork_in_child);
  }
};
const Start start;

// ------------------------------------------------------------------------------------------------ storage operators

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin) {
  TORCH_CHECK(
      c10::layout_or_default(layout) == c10::Layout::Strided, "device 'neuron' holds strided tensors only, asked for ",
      c10::layout_or_default(layout));
  TORCH_CHECK(!c10::pinned_memory_or_default(pin), "only tensors on 'cpu' can be pinned, asked for 'neuron'");
}

// Where torch.use_deterministic_algorithms asks for it, new memory has fixed values.
at::Tensor filled(at::Tensor tensor) {
  if (at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory()) {
    auto host = as_cpu(tensor);
    at::native::fill_empty_deterministic_(host);
  }
  return tensor;
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin, std::optional<c10::MemoryFormat> format) {
  check_options(layout, pin);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return filled(at::detail::empty_generic(size, &allocator(), kKeys, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin) {
  check_options(layout, pin);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return filled(at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, c10::dtype_or_default(dtype)));
}

// Zeros without memory, as the host has them, would need a kernel for every operator; plain zeros mean the same.
at::Tensor efficient_zeros(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin) {
  return at::zeros(size, dtype, layout, device, pin);
}

const at::Tensor& resize_(
    const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());  // new memory comes from the current device
  return at::native::resize_(self, size, format);
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  const c10::DeviceGuard guard(self.device());
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  const c10::DeviceGuard guard(self.device());
  return at::native::set_tensor_(self, source);
}

at::Tensor& set_nothing(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  c10::Storage nothing(c10::Storage::use_byte_size_t{}, 0, allocator().allocate(0), &allocator(), true);
  return set_storage(self, std::move(nothing), 0, {0}, {});
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool /*non_blocking*/) {
  const at::AutoDispatchBelowADInplaceOrView below;
  as_cpu(destination).copy_(as_cpu(self));
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  at::native::resize_output(destination, self.sizes());
  return copy_from(self, destination, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  return as_cpu(self).item();
}

// Setting memory to one value is no more than a copy: it needs no program.
at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  as_cpu(self).fill_(value);
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  as_cpu(self).zero_();
  return self;
}

// Work has ended when its call returns, so memory can be freed at any time.
void record_stream(at::Tensor& /*self*/, c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == kNeuron, "expected a stream of 'neuron', got one of ", stream.device());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_efficientzerotensor", efficient_zeros);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_nothing);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("fill_.Scalar", fill);
  m.impl("zero_", zero);
  m.impl("record_stream", record_stream);
}

// ------------------------------------------------------------------------------------------------------ for Python

std::vector<int64_t> memory_stats(int64_t index) {
  const auto stats = allocator().getDeviceStats(static_cast<c10::DeviceIndex>(index));
  const auto& bytes = stats.allocated_bytes[0];
  const auto& blocks = stats.allocation[0];
  return {bytes.current, bytes.peak, blocks.current, blocks.allocated, stats.num_ooms};
}

std::string described(at::TensorList tensors, at::IntArrayRef written) {
  std::string text;
  text.reserve(16 + 24 * tensors.size());
  describe_all(text, tensors, written);
  return text;
}

TORCH_LIBRARY(neuron_device, m) {
  m.def("as_cpu(Tensor tensor) -> Tensor");
  m.def("as_cpu_list(Tensor[] tensors) -> Tensor[]");
  m.def("as_cpu_contiguous(Tensor[] tensors) -> Tensor[]");
  m.def("from_cpu(Tensor tensor, int index) -> Tensor");
  m.def("view_of(Tensor base, Tensor view) -> Tensor");
  m.def("store(Tensor[] destinations, Tensor[] values) -> ()");
  m.def("describe(Tensor[] tensors, int[] written) -> str");

  m.def("device_count() -> int", [] { return static_cast<int64_t>(device_count()); });
  m.def("current_device() -> int", [] { return static_cast<int64_t>(current_device); });
  m.def("set_device(int index) -> ()", [](int64_t index) {
    check_index(index);
    current_device = static_cast<c10::DeviceIndex>(index);
  });

  // Bytes held, most bytes held at once, blocks held, blocks ever allocated, allocations refused.
  m.def("memory_stats(int index) -> int[]", memory_stats);
  m.def("reset_peak_memory(int index) -> ()", [](int64_t index) {
    allocator().resetPeakStats(static_cast<c10::DeviceIndex>(index));
  });

  // torch's schema language knows at::Generator as "Generator?" only.
  m.def("default_generator(int index) -> Generator?", [](int64_t index) {
    check_index(index);
    return default_generator(static_cast<c10::DeviceIndex>(index));
  });
  m.def("host_generator(Generator? generator) -> Generator?", host_generator);
  m.def("draw(Generator? generator, int count) -> Tensor[]", [](const std::optional<at::Generator>& generator, int64_t count) {
    TORCH_CHECK(generator.has_value(), "draw: expected a generator");
    return draw(*generator, count);
  });

  m.def("is_initialized() -> bool", [] { return used.load(); });
  m.def("is_in_bad_fork() -> bool", [] { return in_bad_fork.load(); });
  m.def("check_fork() -> ()", check_fork);
}

TORCH_LIBRARY_IMPL(neuron_device, CompositeExplicitAutograd, m) {
  m.impl("as_cpu", as_cpu);
  m.impl("as_cpu_list", as_cpu_list);
  m.impl("as_cpu_contiguous", as_cpu_contiguous);
  m.impl("from_cpu", from_cpu);
  m.impl("view_of", view_of);
  m.impl("store", store);
  m.impl("describe", described);
}

// These deal with memory, below autograd; and they take lazily conjugated or negated tensors as they are. Torch's own
// fallback would resolve such an argument first, by a copy that comes here again and never ends.
#define NEURON_PASS_THROUGH(key)                                            \
  TORCH_LIBRARY_IMPL(neuron_device, key, m) {                               \
    m.impl("as_cpu", torch::CppFunction::makeFallthrough());                \
    m.impl("as_cpu_list", torch::CppFunction::makeFallthrough());           \
    m.impl("as_cpu_contiguous", torch::CppFunction::makeFallthrough());     \
    m.impl("from_cpu", torch::CppFunction::makeFallthrough());              \
    m.impl("view_of", torch::CppFunction::makeFallthrough());               \
    m.impl("store", torch::CppFunction::makeFallthrough());                 \
    m.impl("describe", torch::CppFunction::makeFallthrough());              \
  }
NEURON_PASS_THROUGH(Autograd)
NEURON_PASS_THROUGH(ADInplaceOrView)
NEURON_PASS_THROUGH(Conjugate)
NEURON_PASS_THROUGH(Negative)
#undef NEURON_PASS_THROUGH

#define NEURON_COPY_LAZY_TENSORS(key)                                         \
  TORCH_LIBRARY_IMPL(aten, key, m) {                                          \
    m.impl("_copy_from", torch::CppFunction::makeFallthrough());              \
    m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());   \
  }
NEURON_COPY_LAZY_TENSORS(Conjugate)
NEURON_COPY_LAZY_TENSORS(Negative)
#undef NEURON_COPY_LAZY_TENSORS

}  // namespace
}  // namespace neuron
