// Warm calls: an operator that was seen before, with arguments that mean the same, runs its program from here.
//
// Every operator that has no kernel in this library comes to `run`. The first call of its kind goes on to Python
// (neuron_backend.eager), which makes the program, runs it, and offers it; the table here remembers it under the call's
// key. A device without programs that can be called from here (libnrt's) offers none, and its calls stay in Python.
#include "calls.h"
#include "interpreter.h"
#include "memory.h"
#include "transfer.h"

#include <ATen/DLConvertor.h>
#include <ATen/core/List.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace neuron {
namespace {

constexpr const char* kCapsule = "dltensor";
constexpr int64_t kNew = -1;      // a return that is a new tensor
constexpr int64_t kMissing = -2;  // one that this call does not have
constexpr int64_t kList = -3;     // kList - n: a list of n new tensors

// Python's functions that deal with XLA's arrays; see neuron_backend.runtimes.xla_client.Direct.
struct Functions {
  Object to_array;
  Object device;
  Object shards;
  Object address;
};

// A program, and how a call fits to it: the fields of neuron_backend.eager.program.Program.
struct Entry {
  std::shared_ptr<Functions> functions;
  Object execute;
  std::vector<int64_t> inputs;
  std::optional<c10::ScalarType> numbers;
  std::vector<int64_t> returns;
  std::vector<at::Tensor> outputs;  // of the meta device: shapes and types
  int64_t device;
};

// Read and written under the interpreter's lock.
struct Table {
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries;
  std::atomic<bool> enabled{true};

  static Table& one() {
    static auto* table = new Table();
    return *table;
  }
};

// What Python may offer a program for: the call that this thread has passed on to it.
thread_local Call* passed_on = nullptr;
thread_local std::shared_ptr<Entry> offered;

// -------------------------------------------------------------------------------------------------- XLA's arrays

void delete_unused(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kCapsule) != 0) {
    auto* managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kCapsule));
    managed->deleter(managed);
  }
}

Object array_of(const Functions& functions, DLManagedTensor* managed) {
  const Object capsule(PyCapsule_New(managed, kCapsule, &delete_unused));
  return Object(PyObject_CallFunctionObjArgs(
      functions.to_array.get(), capsule.get(), functions.device.get(), &_Py_NoneStruct, nullptr));
}

std::optional<void*> address_of(const Functions& functions, const Object& array) {
  const Object number(PyObject_CallFunctionObjArgs(functions.address.get(), array.get(), nullptr));
  if (!number) {
    return std::nullopt;
  }
  return reinterpret_cast<void*>(PyLong_AsUnsignedLongLong(number.get()));
}

// A description of memory that it does not own.
struct Borrowed {
  DLManagedTensor managed;
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;

  static DLManagedTensor* of(const at::Tensor& tensor, void* data) {
    auto* made = new Borrowed();
    made->sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    const auto strides = c10::contiguous_strides(tensor.sizes());
    made->strides.assign(strides.begin(), strides.end());
    auto& described = made->managed.dl_tensor;
    described.data = data;
    described.device = {kDLCPU, 0};
    described.ndim = static_cast<int32_t>(tensor.dim());
    described.dtype = at::getDLDataType(tensor);
    described.shape = made->sizes.data();
    described.strides = made->strides.data();
    described.byte_offset = 0;
    made->managed.manager_ctx = made;
    made->managed.deleter = [](DLManagedTensor* self) { delete static_cast<Borrowed*>(self->manager_ctx); };
    return &made->managed;
  }
};

// XLA's array over the memory of a device tensor, kept with that memory for the next program. XLA looks at its size
// in bytes only, and copies memory that is not aligned, which would then be out of date.
Object input_of(const Functions& functions, const at::Tensor& tensor) {
  const bool plain = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() && tensor.numel() > 0;
  if (plain && !tensor.is_cpu()) {
    const c10::DataPtr& held = tensor.storage().data_ptr();
    void* data = static_cast<char*>(tensor.storage().mutable_data()) + tensor.storage_offset() * tensor.itemsize();
    auto* block = held.get_deleter() == &Block::release ? static_cast<Block*>(held.get_context()) : nullptr;
    const size_t bytes = tensor.nbytes();
    if (block != nullptr && block->result != nullptr && block->data == data && block->bytes == bytes) {
      return Object::borrowed(block->result);
    }
    if (block != nullptr && reinterpret_cast<uintptr_t>(data) % kAlignment == 0) {
      if (block->input != nullptr && block->input_data == data && block->input_bytes == bytes) {
        return Object::borrowed(block->input);
      }
      Object array = array_of(functions, Borrowed::of(tensor, data));
      if (array && address_of(functions, array) == data) {
        const Object before(std::exchange(block->input, Object(array).release()));
        block->input_data = data;
        block->input_bytes = bytes;
      }
      return array;
    }
  }
  return array_of(functions, at::toDLPack(as_cpu_contiguous(tensor)[0]));
}

// XLA's array of one float; those of the last few thousand are kept.
Object number_of(const Functions& functions, double number, c10::ScalarType type) {
  static auto* arrays = new std::array<std::unordered_map<double, Object>, 2>();
  constexpr size_t kKept = 4096;
  auto& kept = (*arrays)[type == at::kDouble ? 1 : 0];
  const auto found = kept.find(number);
  if (found != kept.end()) {
    return found->second;
  }
  if (kept.size() >= kKept) {
    kept.clear();
  }
  auto tensor = at::empty({}, at::TensorOptions(at::kCPU).dtype(type));
  tensor.fill_(number);
  return kept.emplace(number, array_of(functions, at::toDLPack(tensor))).first->second;
}

// A device tensor like `example` over the memory of an array, which it keeps.
at::Tensor tensor_of(Object array, void* data, const at::Tensor& example, c10::DeviceIndex index) {
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
  result.unsafeGetTensorImpl()->set_sizes_contiguous(example.sizes());
  return result;
}

// ------------------------------------------------------------------------------------------------------ a warm call

// Runs the program and returns its outputs; nothing if Python or XLA refused something, which the slow path then says.
std::optional<std::vector<at::Tensor>> outputs_of(const Entry& entry, const Call& call) {
  const Interpreter lock;
  drop_abandoned();
  const auto& functions = *entry.functions;
  const size_t count = entry.inputs.size() + (entry.numbers ? call.numbers.size() : 0);
  const Object arguments(PyList_New(static_cast<std::ptrdiff_t>(count)));
  std::ptrdiff_t position = 0;
  const auto give = [&](Object array) {
    const bool made = static_cast<bool>(array);
    if (made) {
      PyList_SetItem(arguments.get(), position++, array.release());
    }
    return made;
  };
  bool whole = static_cast<bool>(arguments);
  for (size_t each = 0; whole && each < entry.inputs.size(); ++each) {
    whole = give(input_of(functions, call.tensors[static_cast<size_t>(entry.inputs[each])]));
  }
  for (size_t each = 0; whole && entry.numbers && each < call.numbers.size(); ++each) {
    whole = give(number_of(functions, call.numbers[each], *entry.numbers));
  }
  if (!whole) {
    PyErr_Clear();
    return std::nullopt;
  }
  const Object executed(PyObject_CallFunctionObjArgs(entry.execute.get(), arguments.get(), nullptr));
  const Object results(
      executed ? PyObject_CallFunctionObjArgs(functions.shards.get(), executed.get(), nullptr) : nullptr);
  if (!results || PySequence_Size(results.get()) != static_cast<std::ptrdiff_t>(entry.outputs.size())) {
    PyErr_Clear();
    return std::nullopt;
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(entry.outputs.size());
  for (size_t each = 0; each < entry.outputs.size(); ++each) {
    const Object shards(PySequence_GetItem(results.get(), static_cast<std::ptrdiff_t>(each)));
    Object array(shards ? PySequence_GetItem(shards.get(), 0) : nullptr);
    const auto data = array ? address_of(functions, array) : std::nullopt;
    if (!data) {
      PyErr_Clear();
      return std::nullopt;
    }
    outputs.push_back(
        tensor_of(std::move(array), *data, entry.outputs[each], static_cast<c10::DeviceIndex>(entry.device)));
  }
  return outputs;
}

// Replaces the arguments on the stack by the results.
void put_results(const Entry& entry, size_t arguments, std::vector<at::Tensor> outputs, torch::jit::Stack* stack) {
  std::vector<c10::IValue> results;
  results.reserve(entry.returns.size());
  size_t next = 0;
  for (const auto kind : entry.returns) {
    if (kind >= 0) {
      results.push_back(torch::jit::peek(*stack, static_cast<size_t>(kind), arguments));
    } else if (kind == kNew) {
      results.emplace_back(std::move(outputs[next++]));
    } else if (kind == kMissing) {
      results.emplace_back(at::Tensor());
    } else {
      c10::List<at::Tensor> list;
      for (auto rest = kList - kind; rest > 0; --rest) {
        list.push_back(std::move(outputs[next++]));
      }
      results.emplace_back(std::move(list));
    }
  }
  torch::jit::drop(*stack, arguments);
  for (auto& result : results) {
    torch::jit::push(*stack, std::move(result));
  }
}

bool run_warm(const Entry& entry, const Call& call, size_t arguments, torch::jit::Stack* stack) {
  auto outputs = outputs_of(entry, call);
  if (!outputs) {
    return false;
  }
  if (!call.written.empty()) {
    const size_t fresh = outputs->size() - call.written.size();
    std::vector<at::Tensor> destinations;
    for (const auto index : call.written) {
      destinations.push_back(call.tensors[static_cast<size_t>(index)]);
    }
    std::vector<at::Tensor> values(
        std::make_move_iterator(outputs->begin() + static_cast<std::ptrdiff_t>(fresh)),
        std::make_move_iterator(outputs->end()));
    outputs->resize(fresh);
    store(destinations, values);
  }
  put_results(entry, arguments, std::move(*outputs), stack);
  return true;
}

std::shared_ptr<Entry> find(const std::string& key) {
  const Interpreter lock;
  const auto& entries = Table::one().entries;
  const auto found = entries.find(key);
  return found == entries.end() ? nullptr : found->second;
}

void run(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  Call call;
  const bool readable = Table::one().enabled.load(std::memory_order_relaxed) &&
      !in_bad_fork.load(std::memory_order_relaxed) && call.read(Facts::of(schema), torch::jit::last(*stack, count));
  if (readable) {
    const auto entry = find(call.key);
    if (entry != nullptr && run_warm(*entry, call, count, stack)) {
      return;
    }
  }
  // Python's kernels are registered for a key that no tensor has.
  struct PassedOn {
    Call* before_call;
    std::shared_ptr<Entry> before_offered;
    explicit PassedOn(Call* call) : before_call(passed_on), before_offered(std::move(offered)) {
      passed_on = call;
      offered = nullptr;
    }
    ~PassedOn() {
      passed_on = before_call;
      offered = std::move(before_offered);
    }
  } scope(readable ? &call : nullptr);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse3), stack);
  if (readable && offered != nullptr) {
    const Interpreter lock;
    Table::one().entries.insert_or_assign(std::move(call.key), std::move(offered));
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

// ------------------------------------------------------------------------------------------------------- for Python

// Lets calls of torch's operators come here whose composite kernels would win over the fallback.
void take_over(const std::vector<std::string>& names) {
  static auto* library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const auto& name : names) {
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run>());
  }
}

PyObject* object_at(int64_t address) {
  return reinterpret_cast<PyObject*>(address);  // CPython's id(); the caller holds the object
}

void offer(
    at::IntArrayRef objects, at::IntArrayRef inputs, std::optional<c10::ScalarType> numbers, at::IntArrayRef returns,
    at::TensorList outputs, at::IntArrayRef written, int64_t tensors, int64_t floats, int64_t device) {
  TORCH_CHECK(objects.size() == 5, "expected five objects: execute, to_array, device, shards, address");
  const auto* call = passed_on;
  if (call == nullptr || call->tensors.size() != static_cast<size_t>(tensors) ||
      call->numbers.size() != static_cast<size_t>(floats) || at::IntArrayRef(call->written) != written) {
    return;  // Python took this call apart in another way: it stays there
  }
  const Interpreter lock;
  static auto* functions = new std::shared_ptr<Functions>();
  if (*functions == nullptr || (*functions)->to_array.get() != object_at(objects[1])) {
    *functions = std::make_shared<Functions>(Functions{
        Object::borrowed(object_at(objects[1])), Object::borrowed(object_at(objects[2])),
        Object::borrowed(object_at(objects[3])), Object::borrowed(object_at(objects[4]))});
  }
  auto entry = std::make_shared<Entry>();
  entry->functions = *functions;
  entry->execute = Object::borrowed(object_at(objects[0]));
  entry->inputs = inputs.vec();
  entry->numbers = numbers;
  entry->returns = returns.vec();
  entry->outputs.assign(outputs.begin(), outputs.end());
  entry->device = device;
  offered = std::move(entry);
}

TORCH_LIBRARY_FRAGMENT(neuron_device, m) {
  m.def("lift(str[] names) -> ()", [](const std::vector<std::string>& names) {
    lifting().insert(names.begin(), names.end());
  });
  m.def("take_over(str[] names) -> ()", take_over);
  m.def("offer_wanted() -> bool", [] { return passed_on != nullptr; });
  m.def(
      "offer(int[] objects, int[] inputs, ScalarType? numbers, int[] returns, Tensor[] outputs, int[] written, "
      "int tensors, int floats, int device) -> ()");
  m.def("forget() -> ()", [] {
    const Interpreter lock;
    Table::one().entries.clear();
  });
  // Whether warm calls run from here at all; returns whether they did.
  m.def("set_warm(bool enabled) -> bool", [](bool enabled) { return Table::one().enabled.exchange(enabled); });
  m.def("warm_entries() -> int", [] { return static_cast<int64_t>(Table::one().entries.size()); });
}

TORCH_LIBRARY_IMPL(neuron_device, CompositeExplicitAutograd, m) {
  m.impl("offer", offer);
}

}  // namespace
}  // namespace neuron
