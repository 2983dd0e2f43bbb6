// Tensors on the device as tensors on the host over the same bytes, and back.
#pragma once

#include "memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <c10/util/strides.h>

#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

namespace neuron {

// Up to this number of bytes a copy is over before torch's own would have its threads at work.
constexpr size_t kOneThread = 1 << 20;

inline const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// A tensor over `storage` with the element type and geometry of `like`, lazy conjugation and negation included.
inline at::Tensor tensor_over(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) {
    result._set_conj(true);
  }
  if (like.is_neg()) {
    result._set_neg(true);
  }
  return result;
}

inline void check_dense(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.layout() == c10::Layout::Strided && tensor.has_storage(),
      "device 'neuron' holds strided tensors only, got layout ", tensor.layout(), " on ", tensor.device(),
      ": make it dense (to_dense()), or keep on the CPU what it comes from");
}

// The memory of a device storage as a host storage; it is valid as long as either lives.
inline c10::Storage host_storage(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  const c10::Device cpu(c10::DeviceType::CPU);
  c10::DataPtr shared;
  if (data.get_deleter() == &Block::release) {
    auto* block = static_cast<Block*>(data.get_context());
    shared = block == nullptr ? c10::DataPtr(nullptr, cpu) : block->share(cpu);
  } else {
    // Memory that another allocator gave to the storage (a shared file, say): hold the storage itself.
    shared = {
        storage.mutable_data(), new c10::Storage(storage),
        [](void* held) { delete static_cast<c10::Storage*>(held); }, cpu};
  }
  return {c10::Storage::use_byte_size_t{}, storage.nbytes(), std::move(shared), nullptr, false};
}

inline void check_host_or_neuron(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.is_cpu() || tensor.device().type() == kNeuron, "expected a tensor on 'neuron' or 'cpu', got ",
      tensor.device());
  check_dense(tensor);
}

// Host tensors over the same bytes as `tensors`; those that share a storage still do. Host tensors are returned as
// they are.
inline std::vector<at::Tensor> as_cpu_list(const at::TensorList tensors) {
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  std::unordered_map<const c10::StorageImpl*, c10::Storage> seen;
  for (const auto& tensor : tensors) {
    check_host_or_neuron(tensor);
    if (tensor.is_cpu()) {
      result.push_back(tensor);
      continue;
    }
    auto& host = seen[tensor.storage().unsafeGetStorageImpl()];
    if (!host) {
      host = host_storage(tensor.storage());
    }
    result.push_back(tensor_over(host, c10::DispatchKeySet(c10::DispatchKey::CPU), tensor));
  }
  return result;
}

// The same for one tensor.
inline at::Tensor as_cpu(const at::Tensor& tensor) {
  check_host_or_neuron(tensor);
  if (tensor.is_cpu()) {
    return tensor;
  }
  return tensor_over(host_storage(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor);
}

// A device tensor that takes over the memory of a host tensor without a copy. The caller gives `tensor` up: whoever
// else holds it would see, and make, changes to the device tensor.
inline at::Tensor from_cpu(const at::Tensor& tensor, int64_t index) {
  TORCH_CHECK(tensor.is_cpu(), "expected a tensor on 'cpu', got ", tensor.device());
  check_dense(tensor);
  check_index(index);
  check_fork();
  const c10::Storage& source = tensor.storage();
  const c10::Device device(kNeuron, static_cast<c10::DeviceIndex>(index));
  const size_t bytes = source.nbytes();
  c10::DataPtr data(nullptr, nullptr, &Block::release, device);
  if (bytes > 0) {
    count_allocation(device.index(), bytes);
    void* memory = source.mutable_data();
    auto* block = new Block{.data = memory, .bytes = bytes, .device = device.index(), .owner = source};
    data = {memory, block, &Block::release, device};
  }
  c10::Storage taken(c10::Storage::use_byte_size_t{}, bytes, std::move(data), &allocator(), true);
  return tensor_over(std::move(taken), kKeys, tensor);
}

// Contiguous host tensors with the values of `tensors`, over the same bytes where that is possible.
inline std::vector<at::Tensor> as_cpu_contiguous(const at::TensorList tensors) {
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    auto host = as_cpu(tensor).resolve_conj().resolve_neg().contiguous();
    const auto strides = c10::contiguous_strides(host.sizes());
    if (host.strides() != c10::IntArrayRef(strides)) {
      host = host.as_strided(host.sizes(), strides);  // torch lets an axis of size 1 have any stride; programs do not
    }
    result.push_back(std::move(host));
  }
  return result;
}

// The device tensor on `base`'s storage that shows what `view`, a host view made from `as_cpu(base)`, shows.
inline at::Tensor view_of(const at::Tensor& base, const at::Tensor& view) {
  TORCH_CHECK(base.device().type() == kNeuron && view.is_cpu(), "expected a neuron tensor and a host view of it");
  TORCH_CHECK(
      view.storage().data() == base.storage().data() && view.storage().nbytes() <= base.storage().nbytes(),
      "this host tensor is no view of the device tensor");
  return tensor_over(base.storage(), kKeys, view);
}

// Whether the elements of both lie alike, each without gaps: then copying one is copying its bytes.
inline bool lie_alike(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() && one.dtype() == other.dtype() &&
      one.is_non_overlapping_and_dense() && !one.is_conj() && !one.is_neg() && !other.is_conj() && !other.is_neg();
}

// Whether `tensor`, which has no gaps, is all of its storage.
inline bool is_whole(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 &&
      tensor.storage().nbytes() == static_cast<size_t>(tensor.numel()) * tensor.itemsize();
}

// Joins tensors along `dim` into `out` by copying their bytes, so that a sequence that grows is no reason to compile.
// False if they do not all lie in plain order, or torch has something to say of them.
inline bool join(at::TensorList tensors, int64_t dim, const at::Tensor& out) {
  const auto plain = [&out](const at::Tensor& tensor) {
    return tensor.device() == out.device() && tensor.scalar_type() == out.scalar_type() && tensor.dim() == out.dim() &&
        tensor.layout() == c10::Layout::Strided && !tensor.is_conj() && !tensor.is_neg() && tensor.numel() > 0 &&
        tensor.strides() == c10::IntArrayRef(c10::contiguous_strides(tensor.sizes())) &&
        (tensor.dim() < 4 || tensor.size(1) > 1);
  };
  dim = dim < 0 ? dim + out.dim() : dim;
  if (out.device().type() != kNeuron || dim < 0 || dim >= out.dim() || !plain(out)) {
    return false;
  }
  const auto axis = static_cast<size_t>(dim);
  int64_t size = 0;
  for (const auto& tensor : tensors) {
    if (!plain(tensor) || tensor.storage().is_alias_of(out.storage()) ||
        tensor.sizes().slice(0, axis) != out.sizes().slice(0, axis) ||
        tensor.sizes().slice(axis + 1) != out.sizes().slice(axis + 1)) {
      return false;
    }
    size += tensor.size(dim);
  }
  if (size != out.size(dim)) {
    return false;
  }
  const size_t rows = static_cast<size_t>(c10::multiply_integers(out.sizes().slice(0, axis)));
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  for (size_t row = 0; row < rows; ++row) {
    for (const auto& tensor : tensors) {
      const size_t bytes = tensor.nbytes() / rows;
      std::memcpy(to, static_cast<const char*>(tensor.const_data_ptr()) + row * bytes, bytes);
      to += bytes;
    }
  }
  return true;
}

// Gives `destination`, whose memory nobody has seen, the memory of `value`, a program's result, instead of a copy.
inline bool take_memory(const at::Tensor& destination, const at::Tensor& value) {
  const c10::DataPtr& held = destination.storage().data_ptr();
  if (destination.numel() == 0 || !lie_alike(destination, value) || !is_whole(destination) || !is_whole(value) ||
      held.device() != value.device() || value.storage().use_count() != 1 || held.get_deleter() != &Block::release ||
      static_cast<Block*>(held.get_context())->references.load() != 1) {
    return false;
  }
  c10::DataPtr nothing(nullptr, nullptr, &Block::release, held.device());
  auto* given = value.storage().unsafeGetStorageImpl();
  destination.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(given->set_data_ptr(std::move(nothing)));
  return true;
}

// Writes each of `values`, fresh tensors of host or device, to the device tensor in its place. A tensor's memory stays
// where it is, as others may know its address; one that has to be resized gets the strides of its value.
inline void store(const at::TensorList destinations, const at::TensorList values) {
  TORCH_CHECK(destinations.size() == values.size(), "expected one value for each destination");
  const at::AutoDispatchBelowADInplaceOrView below;
  for (size_t index = 0; index < values.size(); ++index) {
    const auto& destination = destinations[index];
    const auto& value = values[index];
    if (at::native::resize_output(destination, value.sizes()) && value.is_non_overlapping_and_dense()) {
      destination.unsafeGetTensorImpl()->set_sizes_and_strides(value.sizes(), value.strides());
    }
    if (lie_alike(destination, value) && value.nbytes() <= kOneThread) {
      std::memcpy(destination.mutable_data_ptr(), value.const_data_ptr(), value.nbytes());
    } else {
      as_cpu(destination).copy_(as_cpu(value));
    }
  }
}

}  // namespace neuron
