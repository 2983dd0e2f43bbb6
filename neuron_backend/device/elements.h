// A tensor's elements, copied to other memory.
#pragma once

#include "memory.h"
#include "transfer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/SmallVector.h>
#include <c10/util/strides.h>

#include <cstring>

namespace neuron {

// From this number of elements on, torch's own copy is worth the microseconds that it takes to begin.
constexpr int64_t kFew = 8192;

// The axes of a tensor, without those of size 1, and with those together that are one run through memory.
struct Axes {
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;

  explicit Axes(const at::Tensor& tensor) {
    for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
      const auto size = tensor.size(axis);
      const auto stride = tensor.stride(axis);
      if (size == 1) {
        continue;
      }
      if (!sizes.empty() && strides.back() == size * stride) {
        sizes.back() *= size;
        strides.back() = stride;
      } else {
        sizes.push_back(size);
        strides.push_back(stride);
      }
    }
  }
};

// The bits of one element.
template <size_t bytes>
struct Element {
  char bits[bytes];
};

template <typename Value>
Value* copy_axes(const Axes& axes, size_t axis, const Value* from, Value* to) {
  const auto size = axes.sizes[axis];
  const auto stride = axes.strides[axis];
  if (axis + 1 < axes.sizes.size()) {
    for (int64_t each = 0; each < size; ++each) {
      to = copy_axes(axes, axis + 1, from + each * stride, to);
    }
    return to;
  }
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(size) * sizeof(Value));
    return to + size;
  }
  for (int64_t each = 0; each < size; ++each) {
    *to++ = from[each * stride];
  }
  return to;
}

template <size_t bytes>
void copy_few(const Axes& axes, const void* from, void* to) {
  copy_axes(axes, 0, static_cast<const Element<bytes>*>(from), static_cast<Element<bytes>*>(to));
}

// Copies the elements of `tensor`, of device or host, to memory that they fill: as they lie, if they fill their own,
// else in plain order. It must have some.
inline void copy_elements(const at::Tensor& tensor, void* to) {
  const void* from = tensor.const_data_ptr();
  const bool lazy = tensor.is_conj() || tensor.is_neg();
  const bool dense = tensor.is_non_overlapping_and_dense();
  if (!lazy && dense) {
    std::memcpy(to, from, tensor.nbytes());
    return;
  }
  if (!lazy && tensor.numel() < kFew) {
    const Axes axes(tensor);
    switch (tensor.itemsize()) {
      case 1:
        return copy_few<1>(axes, from, to);
      case 2:
        return copy_few<2>(axes, from, to);
      case 4:
        return copy_few<4>(axes, from, to);
      case 8:
        return copy_few<8>(axes, from, to);
      case 16:
        return copy_few<16>(axes, from, to);
      default:
        break;
    }
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto plain = c10::contiguous_strides(tensor.sizes());
  const auto strides = dense ? tensor.strides() : c10::IntArrayRef(plain);
  at::from_blob(to, tensor.sizes(), strides, tensor.options().device(at::kCPU)).copy_(as_cpu(tensor));
}

}  // namespace neuron
