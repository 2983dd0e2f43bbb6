// Warm calls: an operator that was seen before, with arguments that mean the same, runs its program from here.
//
// Every operator that has no kernel in this library comes to `run`. The first call of its kind goes on to Python
// (neuron_backend.eager), which makes the program, runs it, and offers it; the table here remembers it under the call's
// key. A device without programs that can be called from here (libnrt's) offers none, and its calls stay in Python.
#include "calls.h"
#include "interpreter.h"
#include "loaded.h"
#include "transfer.h"

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

constexpr int64_t kNew = -1;      // a return that is a new tensor
constexpr int64_t kMissing = -2;  // one that this call does not have
constexpr size_t kMost = 1 << 14;  // kinds of calls that are remembered: neuron_backend.eager.dispatch.MOST
constexpr int64_t kList = -3;     // kList - n: a list of n new tensors

// Read and written under the interpreter's lock. A key with no entry: the programs of such calls have their numbers
// compiled in, and are found by these too.
struct Table {
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries;
  std::atomic<bool> enabled{true};

  static Table& one() {
    static auto* table = new Table();
    return *table;
  }

  std::shared_ptr<Entry> find(const Call& call) const {
    auto found = entries.find(call.key);
    if (found != entries.end() && found->second == nullptr) {
      found = entries.find(call.key_with_numbers());
    }
    return found == entries.end() ? nullptr : found->second;
  }

  void put(const Call& call, std::shared_ptr<Entry> entry, bool compiled_in) {
    if (entries.size() >= kMost) {  // values that were compiled in, most often: those in use come again
      entries.clear();
    }
    entries.insert_or_assign(call.key, compiled_in ? nullptr : entry);
    if (compiled_in) {
      entries.insert_or_assign(call.key_with_numbers(), std::move(entry));
    }
  }
};

// What Python may offer a program for: the call that this thread has passed on to it.
thread_local Call* passed_on = nullptr;
struct Offer {
  std::shared_ptr<Entry> entry;
  bool compiled_in = false;  // whether the call's numbers are part of the program
};
thread_local Offer offered;

// ------------------------------------------------------------------------------------------------------ a warm call

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

// Whether `out` is the tensor that torch makes for the result of `x + y`, a call without out=: nobody but that code, the
// stack and our `Call` has it, and Python never had. Then nobody knows the address of its memory either.
bool made_for_the_result(const at::Tensor& out) {
  const auto& storage = out.storage();
  return out.use_count() == 3 && storage.use_count() == 1 &&
      out.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() == nullptr &&
      storage.unsafeGetStorageImpl()->pyobj_slot()->load_pyobj() == nullptr;
}

// Runs the call's program, if there is one that can be run from here.
bool run_warm(const Call& call, size_t arguments, torch::jit::Stack* stack) {
  std::shared_ptr<Entry> entry;
  std::optional<std::vector<at::Tensor>> outputs;
  {
    const Interpreter lock;
    entry = Table::one().find(call);
    if (entry != nullptr) {
      outputs = outputs_of(*entry, call);
    }
  }
  if (!outputs) {
    return false;
  }
  if (!call.written.empty()) {
    const size_t fresh = outputs->size() - call.written.size();
    for (size_t each = 0; each < call.written.size(); ++each) {
      const auto& destination = call.tensors[static_cast<size_t>(call.written[each])];
      const auto& value = (*outputs)[fresh + each];
      if (!call.only_out || !made_for_the_result(destination) || !take_memory(destination, value)) {
        store(destination, value);
      }
    }
    outputs->resize(fresh);
  }
  put_results(*entry, arguments, std::move(*outputs), stack);
  return true;
}

// Lets autograd notice that what it saved was written.
void move_versions(const Facts& facts, at::ArrayRef<c10::IValue> arguments) {
  for (size_t position = 0; position < arguments.size(); ++position) {
    if (facts.written[position] && arguments[position].isTensorList()) {
      for (const at::Tensor& tensor : arguments[position].toTensorVector()) {
        if (!tensor.is_inference()) {
          tensor.unsafeGetTensorImpl()->bump_version();
        }
      }
    }
  }
}

void run(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  if (Facts::of(schema).moves_versions) {
    move_versions(Facts::of(schema), torch::jit::last(*stack, count));
  }
  if (Facts::of(schema).joins && Table::one().enabled.load(std::memory_order_relaxed) &&
      !in_bad_fork.load(std::memory_order_relaxed)) {
    const auto arguments = torch::jit::last(*stack, count);
    const auto out = arguments[2].toTensor();
    if (join(arguments[0].toTensorVector(), arguments[1].toInt(), out)) {
      torch::jit::drop(*stack, count);
      torch::jit::push(*stack, out);
      return;
    }
  }
  Call call;
  const bool readable = Table::one().enabled.load(std::memory_order_relaxed) &&
      !in_bad_fork.load(std::memory_order_relaxed) && call.read(Facts::of(schema), torch::jit::last(*stack, count));
  if (readable && run_warm(call, count, stack)) {
    return;
  }
  // Python's kernels are registered for a key that no tensor has.
  struct PassedOn {
    Call* before_call;
    Offer before_offered;
    explicit PassedOn(Call* call) : before_call(passed_on), before_offered(std::move(offered)) {
      passed_on = call;
      offered = {};
    }
    ~PassedOn() {
      passed_on = before_call;
      offered = std::move(before_offered);
    }
  } scope(readable ? &call : nullptr);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse3), stack);
  if (readable && offered.entry != nullptr) {
    const Interpreter lock;
    Table::one().put(call, std::move(offered.entry), offered.compiled_in);
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

void offer(
    at::IntArrayRef objects, at::IntArrayRef inputs, std::optional<c10::ScalarType> numbers, int64_t draws,
    at::IntArrayRef returns, at::TensorList outputs, at::IntArrayRef written, int64_t tensors, int64_t floats,
    int64_t device, int64_t checks) {
  const auto* call = passed_on;
  if (call == nullptr || call->tensors.size() != static_cast<size_t>(tensors) ||
      call->numbers.size() != static_cast<size_t>(floats) || at::IntArrayRef(call->written) != written) {
    return;  // Python took this call apart in another way: it stays there
  }
  const Interpreter lock;
  auto entry = std::make_shared<Entry>(entry_of(objects, outputs, device, checks));
  entry->inputs = inputs.vec();
  entry->numbers = numbers;
  entry->draws = static_cast<uint64_t>(draws);
  entry->returns = returns.vec();
  offered = {.entry = std::move(entry), .compiled_in = floats > 0 && !numbers};
}

TORCH_LIBRARY_FRAGMENT(neuron_device, m) {
  // To be called before the first operator.
  m.def("compile_in(str[] shortcuts, str[] names) -> ()", [](
      const std::vector<std::string>& shortcuts, const std::vector<std::string>& names) {
    with_shortcuts().insert(shortcuts.begin(), shortcuts.end());
    constant_parameters().insert(names.begin(), names.end());
  });
  // For each argument of an operator's schema: 0 if its numbers are never lifted, 1 unless they have a shortcut, 2 if
  // it can be proven.
  m.def("lifting(str name, str overload) -> int[]", [](const std::string& name, const std::string& overload) {
    std::vector<int64_t> found;
    for (const auto each : Facts::of(c10::Dispatcher::singleton().findSchemaOrThrow(
             name.c_str(), overload.c_str()).schema()).lifting) {
      found.push_back(static_cast<int64_t>(each));
    }
    return found;
  });
  m.def("class_of_float(float value) -> int", [](double value) { return class_of(value); });
  m.def("class_of_int(int value) -> int", [](int64_t value) { return class_of(value); });
  m.def("write_in_silence(str[] parameters) -> ()", [](const std::vector<std::string>& names) {
    written_in_silence().insert(names.begin(), names.end());
  });
  m.def("take_over(str[] names) -> ()", take_over);
  m.def("offer_wanted() -> bool", [] { return passed_on != nullptr; });
  m.def(
      "offer(int[] objects, int[] inputs, ScalarType? numbers, int draws, int[] returns, Tensor[] outputs, "
      "int[] written, int tensors, int floats, int device, int checks) -> ()");
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
