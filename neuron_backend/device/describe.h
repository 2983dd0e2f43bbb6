// The part of the eager path's table key that torch's tensors make up, as text.
#pragma once

#include "memory.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

namespace neuron {

constexpr char kOverlaps = '!';

inline void append(std::string& text, int64_t number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number).ptr;
  text.append(digits, end);
}

// The bytes between a tensor's first and last element; torch has refused negative strides.
inline std::pair<const char*, const char*> span_of(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    last += (tensor.size(axis) - 1) * tensor.stride(axis);
  }
  const auto* first = static_cast<const char*>(tensor.const_data_ptr());
  return {first, first + (last + 1) * static_cast<int64_t>(tensor.itemsize())};
}

inline bool share_memory(const at::Tensor& one, const at::Tensor& other) {
  if (one.numel() == 0 || other.numel() == 0 || !one.storage().is_alias_of(other.storage())) {
    return false;
  }
  const auto [first, last] = span_of(one);
  const auto [other_first, other_last] = span_of(other);
  return first < other_last && other_first < last;
}

// Whether reading everything first and writing it afterwards could differ from what torch does on the host: two
// written tensors share memory, or a written tensor partly overlaps one that is read (which most operators refuse).
inline bool overlaps(at::ArrayRef<at::Tensor> tensors, at::IntArrayRef written) {
  for (const auto index : written) {
    const auto& target = tensors[static_cast<size_t>(index)];
    for (size_t other = 0; other < tensors.size(); ++other) {
      if (static_cast<int64_t>(other) == index || !share_memory(target, tensors[other])) {
        continue;
      }
      const bool also_written = std::find(written.begin(), written.end(), static_cast<int64_t>(other)) != written.end();
      if (also_written || at::get_overlap_status(target, tensors[other]) == at::MemOverlapStatus::Partial) {
        return true;
      }
    }
  }
  return false;
}

inline void describe(std::string& text, const at::Tensor& tensor) {
  append(text, static_cast<int64_t>(tensor.scalar_type()));
  for (const auto size : tensor.sizes()) {
    text += ',';
    append(text, size);
  }
  const auto device = tensor.device();
  if (device.type() == kNeuron) {
    text += 'n';
    append(text, device.index());
  } else {
    text += 'o';
    append(text, static_cast<int64_t>(device.type()));
  }
  if (tensor.strides() != c10::IntArrayRef(c10::contiguous_strides(tensor.sizes()))) {
    for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
      text += '/';
      // the stride of an axis of size 1 says nothing, but for the memory formats of images and volumes
      append(text, tensor.dim() < 4 && tensor.size(axis) == 1 ? 0 : tensor.stride(axis));
    }
  }
  if (tensor.is_conj()) {
    text += '*';
  }
  if (tensor.is_neg()) {
    text += '-';
  }
  text += ';';
}

// Describes what a program for these tensors depends on: torch's default dtype, determinism and autocast; for each
// tensor element type, shape, device, strides and lazy bits; and how those at `written` lie in memory to the
// others.
inline void describe_all(std::string& text, at::ArrayRef<at::Tensor> tensors, at::IntArrayRef written) {
  append(text, static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  text += at::globalContext().deterministicAlgorithms() ? 'd' : 'n';
  text += at::autocast::is_autocast_enabled(kNeuron) ? 'a' : 'n';
  for (const auto& tensor : tensors) {
    TORCH_CHECK(
        tensor.layout() == c10::Layout::Strided, "device 'neuron' computes with strided tensors only, got layout ",
        tensor.layout());
    describe(text, tensor);
  }
  if (tensors.size() > 1 && overlaps(tensors, written)) {
    text += kOverlaps;
  }
}

}  // namespace neuron
