// Programs of compiled graphs, which Python holds by a number and calls on lists of tensors: from there on they run as
// warm calls of operators do. Everything here is done under the interpreter's lock.
#include "interpreter.h"
#include "loaded.h"

#include <torch/library.h>

#include <memory>
#include <unordered_map>
#include <vector>

namespace neuron {
namespace {

struct Held {
  Entry entry;
  std::vector<at::Tensor> inputs;  // of the meta device: what it takes
};

struct Programs {
  std::unordered_map<int64_t, std::shared_ptr<Held>> held;
  int64_t last = 0;

  static Programs& all() {
    static auto* programs = new Programs();
    return *programs;
  }
};

int64_t hold(
    at::IntArrayRef objects, at::TensorList inputs, at::TensorList outputs, int64_t device, int64_t checks) {
  const Interpreter lock;
  auto held = std::make_shared<Held>();
  held->entry = entry_of(objects, outputs, device, checks);
  held->inputs.assign(inputs.begin(), inputs.end());
  for (size_t each = 0; each < inputs.size(); ++each) {
    held->entry.inputs.push_back(static_cast<int64_t>(each));
  }
  auto& programs = Programs::all();
  programs.held.emplace(++programs.last, std::move(held));
  return programs.last;
}

void release(int64_t number) {
  const Interpreter lock;
  Programs::all().held.erase(number);
}

bool takes(const at::Tensor& expected, const at::Tensor& given) {
  return given.scalar_type() == expected.scalar_type() && given.sizes() == expected.sizes() &&
      given.layout() == c10::Layout::Strided && !given.is_conj() && !given.is_neg() &&
      (given.is_cpu() || given.device().type() == kNeuron);
}

// The results, on the device, or none at all: then the slow path is to do it again, and to say what is wrong.
std::vector<at::Tensor> run_held(int64_t number, at::TensorList tensors) {
  const Interpreter lock;
  const auto found = Programs::all().held.find(number);
  if (found == Programs::all().held.end() || in_bad_fork.load(std::memory_order_relaxed)) {
    return {};
  }
  const auto held = found->second;  // whoever holds it may let it go while it runs
  if (!std::equal(
          held->inputs.begin(), held->inputs.end(), tensors.begin(), tensors.end(), takes)) {
    return {};
  }
  Call call;
  for (const auto& tensor : tensors) {
    // a graph's program has its inputs in plain order, an operator's as they lie
    const bool plain = tensor.is_contiguous() || tensor.numel() == 0;
    call.tensors.push_back(plain ? tensor : from_cpu(as_cpu(tensor).contiguous(), held->entry.device));
  }
  return outputs_of(held->entry, call).value_or(std::vector<at::Tensor>());
}

TORCH_LIBRARY_FRAGMENT(neuron_device, m) {
  m.def("hold(int[] objects, Tensor[] inputs, Tensor[] outputs, int device, int checks) -> int");
  m.def("release(int number) -> ()", release);
  m.def("held() -> int", [] { return static_cast<int64_t>(Programs::all().held.size()); });
  m.def("run_held(int number, Tensor[] tensors) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(neuron_device, CompositeExplicitAutograd, m) {
  m.impl("hold", hold);
  m.impl("run_held", run_held);
}

}  // namespace
}  // namespace neuron
