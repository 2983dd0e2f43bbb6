// One call of an operator taken apart, off the dispatcher's stack: the C++ half of neuron_backend.eager.signature.
#pragma once

#include "describe.h"

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace neuron {

// Operators (aten::mul_) whose floats may be inputs of their programs; neuron_backend.eager.scalars says which.
inline std::unordered_set<std::string>& lifting() {
  static auto* names = new std::unordered_set<std::string>();
  return *names;
}

// Parameters (aten::native_batch_norm.running_mean) that are written though their schema does not say so;
// neuron_backend.eager.lifting names them.
inline std::unordered_set<std::string>& written_in_silence() {
  static auto* names = new std::unordered_set<std::string>();
  return *names;
}

// What an operator's schema says that a key needs.
struct Facts {
  std::string name;
  bool known;  // of torch's own operators: others may be taken back, and their schema's memory used again
  bool lifts;
  bool names_generator = false;  // by keyword, as Python's half expects it
  std::vector<bool> written;  // by argument
  std::vector<bool> out;  // likewise: those called out=

  explicit Facts(const c10::FunctionSchema& schema)
      : name(schema.name() + '.' + schema.overload_name() + ' '),
        known(schema.name().starts_with("aten::")),
        lifts(lifting().contains(schema.name())) {
    for (const auto& argument : schema.arguments()) {
      out.push_back(argument.is_out());
      written.push_back(
          (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) ||
          written_in_silence().contains(schema.name() + '.' + argument.name()));
      names_generator = names_generator || (argument.kwarg_only() && argument.name() == "generator");
    }
  }

  static const Facts& of(const c10::FunctionSchema& schema) {
    static thread_local std::unordered_map<const c10::FunctionSchema*, Facts> seen;
    const auto found = seen.find(&schema);
    return found != seen.end() ? found->second : seen.emplace(&schema, Facts(schema)).first->second;
  }
};

// `key` is what the call's program depends on; the other fields are those of signature.Call.
class Call {
 public:
  std::string key;
  c10::SmallVector<at::Tensor, 6> tensors;
  c10::SmallVector<double, 2> numbers;
  c10::SmallVector<int64_t, 2> written;
  bool only_out = true;  // whether each of them is an out= argument
  std::optional<at::Generator> generator;  // that the caller names

  // Reads the arguments on top of the stack. False if the call cannot be told apart from others here.
  bool read(const Facts& facts, at::ArrayRef<c10::IValue> arguments) {
    if (!facts.known) {
      return false;
    }
    key.reserve(160);
    key = facts.name;
    for (size_t position = 0; position < arguments.size(); ++position) {
      const size_t before = tensors.size();
      if (!value(facts, arguments[position])) {
        return false;
      }
      if (facts.written[position]) {
        for (size_t each = before; each < tensors.size(); ++each) {
          written.push_back(static_cast<int64_t>(each));
          only_out = only_out && facts.out[position];
        }
      }
    }
    bool anywhere = true;
    for (const auto& tensor : tensors) {
      if (tensor.layout() != c10::Layout::Strided || !(tensor.is_cpu() || tensor.device().type() == kNeuron)) {
        return false;
      }
      anywhere = anywhere && tensor.is_cpu();
    }
    key += ' ';
    describe_all(key, tensors, written);
    if (anywhere) {
      append(key, current_device);  // where its results go
    }
    return key.back() != kOverlaps;
  }

  // The key of the program that has these numbers compiled in, where they cannot be inputs.
  std::string key_with_numbers() const {
    std::string longer = key + '#';
    for (const auto number : numbers) {
      append_bits(longer, number);
    }
    return longer;
  }

 private:
  static void append_bits(std::string& text, double number) {
    char bytes[sizeof(number)];
    std::memcpy(bytes, &number, sizeof(number));
    text.append(bytes, sizeof(bytes));
  }

  void bits(double number) {
    append_bits(key, number);
  }

  void real(const Facts& facts, double number) {
    if (facts.lifts && std::isfinite(number) && number != 0 && number != 1 && number != -1) {
      numbers.push_back(number);
      key += 'f';
    } else {
      key += 'd';
      bits(number);
    }
  }

  void integer(int64_t number) {
    key += 'i';
    append(key, number);
  }

  void complex(c10::complex<double> number) {
    key += 'c';
    bits(number.real());
    bits(number.imag());
  }

  // A Python scalar that torch made a tensor of: it is part of the program, or lifted, as the scalar itself is.
  bool wrapped(const Facts& facts, const at::Tensor& tensor) {
    switch (tensor.scalar_type()) {
      case at::kDouble:
        real(facts, *tensor.const_data_ptr<double>());
        return true;
      case at::kLong:
        integer(*tensor.const_data_ptr<int64_t>());
        return true;
      case at::kBool:
        key += *tensor.const_data_ptr<bool>() ? 'y' : 'n';
        return true;
      case at::kComplexDouble:
        complex(*tensor.const_data_ptr<c10::complex<double>>());
        return true;
      default:
        return false;
    }
  }

  bool value(const Facts& facts, const c10::IValue& given) {
    if (given.isTensor()) {
      const auto& tensor = given.toTensor();
      if (!tensor.defined()) {
        key += 'U';
      } else if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        return tensor.is_cpu() && wrapped(facts, tensor);
      } else {
        key += 'T';
        tensors.push_back(tensor);
      }
    } else if (given.isNone()) {
      key += 'N';
    } else if (given.isInt()) {
      integer(given.toInt());
    } else if (given.isDouble()) {
      real(facts, given.toDouble());
    } else if (given.isBool()) {
      key += given.toBool() ? 'y' : 'n';
    } else if (given.isComplexDouble()) {
      complex(given.toComplexDouble());
    } else if (given.isString()) {
      const auto& text = given.toStringRef();
      key += 's';
      append(key, static_cast<int64_t>(text.size()));
      key += ':';
      key += text;
    } else if (given.isDevice()) {
      const auto device = given.toDevice();
      key += 'v';
      append(key, static_cast<int64_t>(device.type()));
      key += ',';
      append(key, device.index());
    } else if (given.isList()) {
      const auto elements = given.toListRef();
      key += '[';
      append(key, static_cast<int64_t>(elements.size()));
      key += ':';
      for (const auto& element : elements) {
        if (!value(facts, element)) {
          return false;
        }
      }
    } else if (given.isGenerator() && facts.names_generator && given.toGenerator().device().type() == kNeuron) {
      generator = given.toGenerator();  // no part of the program, which gets seed and offset
      key += 'G';
    } else {
      return false;  // a generator of the host or a symbolic number, say
    }
    return true;
  }
};

}  // namespace neuron
