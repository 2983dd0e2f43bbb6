// XLA's arrays: over the memory of device tensors, over copies of small or strided ones, and as results.
//
// XLA looks at an array's size in bytes, nothing else. To make one over memory takes longer than a whole program, so
// arrays are kept: with the memory they show, or with a piece of scratch memory that calls use in turn.
#pragma once

#include "calls.h"
#include "elements.h"
#include "interpreter.h"
#include "memory.h"
#include "transfer.h"

#include <ATen/DLConvertor.h>
#include <ATen/EmptyTensor.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace neuron {

constexpr const char* kCapsule = "dltensor";

// Up to this size a tensor is rather copied to scratch memory than given an array of its own.
constexpr size_t kCopied = 16 << 10;

// The most scratch memory that is kept between calls.
constexpr size_t kKept = 8 << 20;

// Python's functions that deal with XLA's arrays; see neuron_backend.runtimes.xla_client.Direct.
struct Functions {
  Object handler;
  Object to_array;
  Object device;
  Object results;
  Object address;
};

inline void delete_unused(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kCapsule) != 0) {
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsule));
    managed->deleter(managed);
  }
}

inline Object array_of(const Functions& functions, DLManagedTensor* managed) {
  const Object capsule(PyCapsule_New(managed, kCapsule, &delete_unused));
  return Object(PyObject_CallFunctionObjArgs(
      functions.to_array.get(), capsule.get(), functions.device.get(), &_Py_NoneStruct, nullptr));
}

inline std::optional<void*> address_of(const Functions& functions, const Object& array) {
  const Object number(PyObject_CallFunctionObjArgs(functions.address.get(), array.get(), nullptr));
  if (!number) {
    return std::nullopt;
  }
  return reinterpret_cast<void*>(PyLong_AsUnsignedLongLong(number.get()));
}

// A description of some bytes for XLA, which frees them with it if it owns them.
struct Described {
  DLManagedTensor managed;
  int64_t bytes;
  int64_t stride = 1;
  bool owned;

  static DLManagedTensor* of(void* data, size_t bytes, bool owned) {
    auto* made = new Described{.managed = {}, .bytes = static_cast<int64_t>(bytes), .owned = owned};
    made->managed.dl_tensor = {
        .data = data,
        .device = {kDLCPU, 0},
        .ndim = 1,
        .dtype = {kDLUInt, 8, 1},
        .shape = &made->bytes,
        .strides = &made->stride,
        .byte_offset = 0};
    made->managed.manager_ctx = made;
    made->managed.deleter = [](DLManagedTensor* self) {
      auto* made = static_cast<Described*>(self->manager_ctx);
      if (made->owned) {
        std::free(self->dl_tensor.data);
      }
      delete made;
    };
    return &made->managed;
  }
};

// Pieces of host memory with an array over each. A program has read its inputs when its call returns, so that the next
// one may write them again. To be used under the interpreter's lock.
class Scratch {
 public:
  struct Piece {
    void* data = nullptr;
    size_t bytes = 0;
    Object array;
  };

  static Scratch& one() {
    static auto* all = new Scratch();
    return *all;
  }

  // Nothing if there is no memory, or if XLA made a copy of it.
  std::optional<Piece> take(const Functions& functions, size_t bytes) {
    auto& free = free_[bytes];
    if (!free.empty()) {
      auto piece = std::move(free.back());
      free.pop_back();
      kept_ -= bytes;
      return piece;
    }
    Piece piece;
    piece.bytes = bytes;
    if (posix_memalign(&piece.data, kAlignment, bytes) != 0) {
      return std::nullopt;
    }
    piece.array = array_of(functions, Described::of(piece.data, bytes, true));
    if (!piece.array || address_of(functions, piece.array) != piece.data) {
      return std::nullopt;
    }
    return piece;
  }

  void give_back(Piece piece) {
    if (kept_ + piece.bytes > kKept) {  // of sizes, perhaps, that nobody asks for any more
      free_.clear();
      kept_ = 0;
    }
    if (piece.bytes > kKept) {
      return;
    }
    kept_ += piece.bytes;
    free_[piece.bytes].push_back(std::move(piece));
  }

 private:
  std::unordered_map<size_t, std::vector<Piece>> free_;
  size_t kept_ = 0;
};

// The inputs of one call. To be made, filled and destroyed under the interpreter's lock.
class Inputs {
 public:
  Inputs(const Functions& functions, size_t count)
      : functions_(functions), list_(PyList_New(static_cast<std::ptrdiff_t>(count))) {}
  ~Inputs() {
    for (auto& piece : pieces_) {
      Scratch::one().give_back(std::move(piece));
    }
  }
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  // These say whether Python and XLA agreed; what went wrong is then left to the slow path to say.
  bool add(const at::Tensor& tensor) {
    if (tensor.numel() == 0) {
      return add(array_of(functions_, at::toDLPack(as_cpu_contiguous(tensor)[0])));
    }
    const size_t bytes = tensor.nbytes();
    const bool plain = tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
    void* data = const_cast<void*>(tensor.const_data_ptr());
    const bool aligned = reinterpret_cast<uintptr_t>(data) % kAlignment == 0;
    Block* block = plain && aligned && !tensor.is_cpu() ? block_of(tensor) : nullptr;
    if (block != nullptr && block->result != nullptr && block->data == data && block->bytes == bytes) {
      return add(Object::borrowed(block->result));
    }
    if (block != nullptr && bytes > kCopied) {
      return add(shown(*block, data, bytes));
    }
    void* copy = add_bytes(bytes);
    if (copy == nullptr) {
      return false;
    }
    copy_elements(tensor, copy);
    return true;
  }

  // Integers as they are, others in `type`.
  bool add(const Number& number, c10::ScalarType type) {
    if (number.whole) {
      return add_value(number.integer);
    }
    return type == at::kDouble ? add_value(number.real) : add_value(static_cast<float>(number.real));
  }

  // As an int32[2], low word first.
  bool add(uint64_t number) {
    static_assert(std::endian::native == std::endian::little);
    return add_value(number);
  }

  PyObject* list() const {
    return list_.get();
  }

 private:
  static Block* block_of(const at::Tensor& tensor) {
    const c10::DataPtr& held = tensor.storage().data_ptr();
    return held.get_deleter() == &Block::release ? static_cast<Block*>(held.get_context()) : nullptr;
  }

  // An array over memory of `block`, kept with it for the next program.
  Object shown(Block& block, void* data, size_t bytes) {
    if (block.input != nullptr && block.input_data == data && block.input_bytes == bytes) {
      return Object::borrowed(block.input);
    }
    Object array = array_of(functions_, Described::of(data, bytes, false));
    if (array && address_of(functions_, array) == data) {
      const Object before(std::exchange(block.input, Object(array).release()));
      block.input_data = data;
      block.input_bytes = bytes;
    }
    return array;
  }

  void* add_bytes(size_t bytes) {
    auto piece = Scratch::one().take(functions_, bytes);
    if (!piece || !add(Object(piece->array))) {
      return nullptr;
    }
    pieces_.push_back(std::move(*piece));
    return pieces_.back().data;
  }

  template <typename Value>
  bool add_value(Value value) {
    void* memory = add_bytes(sizeof(value));
    if (memory != nullptr) {
      std::memcpy(memory, &value, sizeof(value));
    }
    return memory != nullptr;
  }

  bool add(Object array) {
    return list_ && array && PyList_SetItem(list_.get(), position_++, array.release()) == 0;
  }

  const Functions& functions_;
  Object list_;
  std::ptrdiff_t position_ = 0;
  c10::SmallVector<Scratch::Piece, 4> pieces_;
};

// A device tensor like `example` over the memory of an array, which it keeps.
inline at::Tensor tensor_of(Object array, void* data, const at::Tensor& example, c10::DeviceIndex index) {
  const c10::Device device(kNeuron, index);
  const size_t bytes = example.nbytes();
  c10::DataPtr held(nullptr, nullptr, &Block::release, device);
  if (bytes > 0) {
    count_allocation(index, bytes);
    auto* block = new Block{.data = data, .bytes = bytes, .device = index, .result = array.release()};
    held = {data, block, &Block::release, device};
  }
  c10::Storage storage(c10::Storage::use_byte_size_t{}, bytes, std::move(held), &allocator(), true);
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kKeys, example.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(example.sizes(), example.strides());
  return result;
}

}  // namespace neuron
