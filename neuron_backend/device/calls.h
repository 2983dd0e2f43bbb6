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

// Parameters (aten::pow.exponent) that are compiled in where their value has a shortcut, and parameters by their name
// alone (eps) that always are; neuron_backend.eager.lifting names them.
inline std::unordered_set<std::string>& with_shortcuts() {
  static auto* names = new std::unordered_set<std::string>();
  return *names;
}
inline std::unordered_set<std::string>& constant_parameters() {
  static auto* names = new std::unordered_set<std::string>();
  return *names;
}

// Parameters (aten::native_batch_norm.running_mean) that are written though their schema does not say so;
// neuron_backend.eager.lifting names them.
inline std::unordered_set<std::string>& written_in_silence() {
  static auto* names = new std::unordered_set<std::string>();
  return *names;
}

// A Python number that is an input of its program, so that another value is no reason to compile.
struct Number {
  double real;
  int64_t integer;
  bool whole;  // whether it is `integer`

  static Number of(double value) {
    return {.real = value, .integer = 0, .whole = false};
  }
  static Number of(int64_t value) {
    return {.real = static_cast<double>(value), .integer = value, .whole = true};
  }
};

// What stands in a key for a number that is lifted. Code that torch runs may refuse one by its sign, compare it with one,
// or check that a type holds it: numbers share a key only where they agree in all that. Of one size is what is below the
// same of these bounds, and a negative number's class is negative. neuron_backend.eager.scalars has the other half.
constexpr int64_t kConstant = 0;  // it is never lifted
constexpr int64_t kShortcut = 1;  // code likes to choose by this value, so it is in the key, and proven by itself

inline int64_t class_of(double value) {
  const double size = std::abs(value);
  if (!std::isfinite(value) || (value == 0 && std::signbit(value))) {
    return kConstant;
  }
  if (size == 0 || size == 0.5 || size == 1 || size == 2 || size == 3) {
    return kShortcut;
  }
  int64_t found = 2;
  for (const double bound : {1.0, 65504.0, 3.38e38}) {  // the largest of float16 and, nearly, of bfloat16 and float32
    found += size > bound ? 1 : 0;
  }
  return value < 0 ? -found : found;
}

inline int64_t class_of(int64_t value) {
  if (value >= -3 && value <= 3) {
    return kShortcut;
  }
  int64_t found = 2;
  for (const int bits : {7, 8, 15, 16, 31, 32}) {
    const int64_t bound = int64_t{1} << bits;
    found += value < -bound || value >= bound ? 1 : 0;
  }
  return value < 0 ? -found : found;
}

enum class Lifting : uint8_t { kNever, kUnlessShortcut, kProven };

// What an operator's schema says that a key needs.
struct Facts {
  std::string name;
  bool known;  // of torch's own operators: others may be taken back, and their schema's memory used again
  bool moves_versions;  // of what it writes: for lists nothing of torch does that above this kernel
  bool joins;  // whether it is cat.out
  bool names_generator = false;  // by keyword, as Python's half expects it
  std::vector<bool> written;  // by argument
  std::vector<bool> out;  // likewise: those called out=
  std::vector<Lifting> lifting;  // likewise: whether numbers may be inputs
  std::vector<std::optional<c10::IValue>> defaults;  // likewise: most calls leave them, and need no input for them

  // Types are those that may hold a Python number whose value no shape follows from; an int is a size or an axis.
  static Lifting lifting_of(const c10::FunctionSchema& schema, const c10::Argument& argument) {
    const auto type = argument.type()->str();
    const bool number = type == "Scalar" || type == "Scalar?" || type == "Scalar[]" || type == "Tensor" ||
        type == "number" || type == "number?" || type == "number[]" || type == "Tensor?" || type == "float" ||
        type == "float?";
    if (!number || constant_parameters().contains(argument.name())) {
      return Lifting::kNever;
    }
    auto base = schema.name();
    if (base.ends_with('_')) {
      base.pop_back();
    }
    return with_shortcuts().contains(base + '.' + argument.name()) ? Lifting::kUnlessShortcut : Lifting::kProven;
  }

  explicit Facts(const c10::FunctionSchema& schema)
      : name(schema.name() + '.' + schema.overload_name() + ' '), known(schema.name().starts_with("aten::")),
        moves_versions(schema.name().starts_with("aten::_foreach_") && schema.name().ends_with('_')),
        joins(schema.name() == "aten::cat" && schema.overload_name() == "out") {
    for (const auto& argument : schema.arguments()) {
      out.push_back(argument.is_out());
      lifting.push_back(lifting_of(schema, argument));
      defaults.push_back(lifting.back() == Lifting::kNever ? std::nullopt : argument.default_value());
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
  c10::SmallVector<Number, 2> numbers;
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
      lifting_ = is_default(arguments[position], facts.defaults[position]) ? Lifting::kNever : facts.lifting[position];
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
    compare_numbers();
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
    for (const auto& number : numbers) {
      if (number.whole) {
        append(longer, number.integer);
        longer += ',';
      } else {
        append_bits(longer, number.real);
      }
    }
    return longer;
  }

 private:
  Lifting lifting_ = Lifting::kNever;  // of the argument in hand
  bool in_list_ = false;
  c10::SmallVector<double, 4> alone_;  // the numbers that are lifted and not in a list

  static bool is_default(const c10::IValue& given, const std::optional<c10::IValue>& otherwise) {
    if (!otherwise) {
      return false;
    }
    if (given.isInt()) {
      return otherwise->isInt() && given.toInt() == otherwise->toInt();
    }
    return given.isDouble() && otherwise->isDouble() && given.toDouble() == otherwise->toDouble();
  }

  // Code that torch runs may refuse a lower bound above the upper one.
  void compare_numbers() {
    for (size_t one = 0; one < alone_.size(); ++one) {
      for (size_t other = one + 1; other < alone_.size(); ++other) {
        key += alone_[one] < alone_[other] ? '<' : alone_[one] > alone_[other] ? '>' : '=';
      }
    }
  }

  // Whether `value`, a double or an integer, becomes an input; `key` then has what is to be known of it.
  template <typename Value>
  bool lifted(Value value, char letter) {
    const auto found = class_of(value);
    if (lifting_ == Lifting::kNever || found == kConstant ||
        (found == kShortcut && lifting_ == Lifting::kUnlessShortcut)) {
      return false;
    }
    numbers.push_back(Number::of(value));
    if (!in_list_) {
      alone_.push_back(numbers.back().real);
    }
    key += letter;
    append(key, found);
    return found != kShortcut;
  }

  static void append_bits(std::string& text, double number) {
    char bytes[sizeof(number)];
    std::memcpy(bytes, &number, sizeof(number));
    text.append(bytes, sizeof(bytes));
  }

  void bits(double number) {
    append_bits(key, number);
  }

  void real(double number) {
    if (!lifted(number, 'f')) {
      key += 'd';
      bits(number);
    }
  }

  void integer(int64_t number) {
    if (!lifted(number, 'j')) {
      key += 'i';
      append(key, number);
    }
  }

  void complex(c10::complex<double> number) {
    key += 'c';
    bits(number.real());
    bits(number.imag());
  }

  // A Python scalar that torch made a tensor of: it is part of the program, or lifted, as the scalar itself is.
  bool wrapped(const at::Tensor& tensor) {
    switch (tensor.scalar_type()) {
      case at::kDouble:
        real(*tensor.const_data_ptr<double>());
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
        return tensor.is_cpu() && wrapped(tensor);
      } else {
        key += 'T';
        tensors.push_back(tensor);
      }
    } else if (given.isNone()) {
      key += 'N';
    } else if (given.isInt()) {
      integer(given.toInt());
    } else if (given.isDouble()) {
      real(given.toDouble());
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
      in_list_ = true;
      for (const auto& element : elements) {
        if (!value(facts, element)) {
          return false;
        }
      }
      in_list_ = false;
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
