// A loaded program, run on a call's tensors.
#pragma once

#include "arrays.h"
#include "calls.h"
#include "generator.h"
#include "interpreter.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace neuron {

// What the flag of a program holds for a check that found nothing: neuron_backend.module.HOLDS.
constexpr int64_t kHolds = std::numeric_limits<int64_t>::max();

// A program, and how a call fits to it: the fields of neuron_backend.eager.program.Program.
struct Entry {
  std::shared_ptr<Functions> functions;
  Object execute;
  Object handlers;  // Python's list of one for each output
  std::vector<int64_t> inputs;
  std::optional<c10::ScalarType> numbers;
  std::vector<int64_t> returns;
  std::vector<at::Tensor> outputs;  // of the meta device: shapes, strides and types
  uint64_t draws = 0;               // steps of the generator
  c10::DeviceIndex device = 0;
  int64_t checks = 0;  // if there are any, the last output is their flag, and no result: neuron_backend.value_checks
};

inline PyObject* object_at(int64_t address) {
  return reinterpret_cast<PyObject*>(address);  // CPython's id(); the caller holds the object
}

// Of the objects of a `neuron_backend.runtimes.xla_client.Direct`: what all its programs share, and what runs one. To be
// called under the interpreter's lock.
inline Entry entry_of(at::IntArrayRef objects, at::TensorList outputs, int64_t device, int64_t checks) {
  TORCH_CHECK(objects.size() == 6, "expected six objects: execute, handler, to_array, device, results, address");
  static auto* functions = new std::shared_ptr<Functions>();
  if (*functions == nullptr || (*functions)->handler.get() != object_at(objects[1])) {
    *functions = std::make_shared<Functions>(Functions{
        Object::borrowed(object_at(objects[1])), Object::borrowed(object_at(objects[2])),
        Object::borrowed(object_at(objects[3])), Object::borrowed(object_at(objects[4])),
        Object::borrowed(object_at(objects[5]))});
  }
  Entry entry;
  entry.functions = *functions;
  entry.execute = Object::borrowed(object_at(objects[0]));
  const size_t count = outputs.size() + (checks > 0 ? 1 : 0);
  entry.handlers = Object(PyList_New(static_cast<std::ptrdiff_t>(count)));
  for (size_t each = 0; entry.handlers && each < count; ++each) {
    PyList_SetItem(entry.handlers.get(), static_cast<std::ptrdiff_t>(each), Object((*functions)->handler).release());
  }
  entry.outputs.assign(outputs.begin(), outputs.end());
  entry.device = static_cast<c10::DeviceIndex>(device);
  entry.checks = checks;
  return entry;
}

// The steps that a program takes of its generator, taken back unless it ran.
class Drawn {
 public:
  Drawn(const Entry& entry, const Call& call) : count_(entry.draws) {
    if (count_ > 0) {
      generator_ = call.generator ? *call.generator : default_generator(entry.device);
      numbers_ = take(generator_, count_);
    }
  }
  ~Drawn() {
    if (count_ > 0) {
      take_back(generator_, numbers_[1], count_);
    }
  }
  Drawn(const Drawn&) = delete;
  Drawn& operator=(const Drawn&) = delete;

  bool give_to(Inputs& inputs) const {
    return count_ == 0 || (inputs.add(numbers_[0]) && inputs.add(numbers_[1]));
  }
  void keep() {
    count_ = 0;
  }

 private:
  uint64_t count_;
  at::Generator generator_;
  std::array<uint64_t, 2> numbers_{};
};

// What the program gives for the call's tensors, numbers and random numbers: a list of arrays. Null if Python or XLA
// refused something, which the slow path then says.
inline Object results_of(const Entry& entry, const Call& call) {
  const auto& functions = *entry.functions;
  const size_t count = entry.inputs.size() + (entry.numbers ? call.numbers.size() : 0) + (entry.draws > 0 ? 2 : 0);
  Inputs inputs(functions, count);
  bool whole = true;
  for (size_t each = 0; whole && each < entry.inputs.size(); ++each) {
    whole = inputs.add(call.tensors[static_cast<size_t>(entry.inputs[each])]);
  }
  for (size_t each = 0; whole && entry.numbers && each < call.numbers.size(); ++each) {
    whole = inputs.add(call.numbers[each], *entry.numbers);
  }
  if (!whole) {
    return {};
  }
  Drawn drawn(entry, call);
  if (!drawn.give_to(inputs)) {
    return {};
  }
  const Object executed(PyObject_CallFunctionObjArgs(entry.execute.get(), inputs.list(), nullptr));
  if (!executed) {
    return {};
  }
  drawn.keep();
  return Object(
      PyObject_CallFunctionObjArgs(functions.results.get(), executed.get(), entry.handlers.get(), nullptr));
}

// Whether an operator refused its values, as the last of the program's results says.
inline bool refused(const Entry& entry, const Object& results) {
  const Object array(PySequence_GetItem(results.get(), static_cast<std::ptrdiff_t>(entry.outputs.size())));
  const auto data = array ? address_of(*entry.functions, array) : std::nullopt;
  if (!data) {
    return true;
  }
  const auto* found = static_cast<const int64_t*>(*data);
  return std::any_of(found, found + entry.checks, [](int64_t value) { return value != kHolds; });
}

// Runs the program and returns its outputs, or nothing. To be called under the interpreter's lock.
inline std::optional<std::vector<at::Tensor>> outputs_of(const Entry& entry, const Call& call) {
  drop_abandoned();
  const Object results = results_of(entry, call);
  const size_t count = entry.outputs.size() + (entry.checks > 0 ? 1 : 0);
  if (!results || PySequence_Size(results.get()) != static_cast<std::ptrdiff_t>(count) ||
      (entry.checks > 0 && refused(entry, results))) {
    PyErr_Clear();
    return std::nullopt;
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(entry.outputs.size());
  for (const auto& example : entry.outputs) {
    Object array(PySequence_GetItem(results.get(), static_cast<std::ptrdiff_t>(outputs.size())));
    const auto data = array ? address_of(*entry.functions, array) : std::nullopt;
    if (!data) {
      PyErr_Clear();
      return std::nullopt;
    }
    outputs.push_back(tensor_of(std::move(array), *data, example, entry.device));
  }
  return outputs;
}

}  // namespace neuron
