// Random numbers of the device: one generator per device, whose numbers are those of a host generator of equal seed.
#pragma once

#include "memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <mutex>

namespace neuron {

// Random operators run on the host: its kernels take the wrapped generator, and so both share one state.
struct GeneratorImpl final : c10::GeneratorImpl {
  GeneratorImpl(c10::DeviceIndex index, at::Generator host)
      : c10::GeneratorImpl(c10::Device(kNeuron, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host_(std::move(host)) {}

  const at::Generator& host() const {
    return host_;
  }

  void set_current_seed(uint64_t seed) override {
    const std::lock_guard<std::mutex> lock(host_.mutex());
    host_.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    const std::lock_guard<std::mutex> lock(host_.mutex());
    host_.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return host_.get_offset();
  }
  uint64_t current_seed() const override {
    return host_.current_seed();
  }
  uint64_t seed() override {
    const std::lock_guard<std::mutex> lock(host_.mutex());
    return host_.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    const std::lock_guard<std::mutex> lock(host_.mutex());
    host_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const std::lock_guard<std::mutex> lock(host_.unsafeGetGeneratorImpl()->mutex_);
    return host_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  GeneratorImpl* clone_impl() const override {
    return new GeneratorImpl(device().index(), host_.clone());
  }

  at::Generator host_;
};

inline at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<GeneratorImpl>(index, at::detail::createCPUGenerator());
}

// The device's default generator, seeded from the system as the host's default generator is.
inline const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* all = [] {
    auto* made = new std::array<at::Generator, kMaxDevices>();
    for (c10::DeviceIndex each = 0; each < device_count(); ++each) {
      (*made)[static_cast<size_t>(each)] = at::make_generator<GeneratorImpl>(
          each, at::detail::createCPUGenerator(c10::detail::getNonDeterministicRandom()));
    }
    return made;
  }();
  check_index(index);
  return (*all)[static_cast<size_t>(index)];
}

// The host generator that shares its state with `generator`; itself if it is a host generator.
inline at::Generator host_generator(const at::Generator& generator) {
  if (generator.device().is_cpu()) {
    return generator;
  }
  TORCH_CHECK(
      generator.device().type() == kNeuron, "expected a generator of 'cpu' or 'neuron', got ", generator.device());
  return static_cast<const GeneratorImpl*>(generator.unsafeGetGeneratorImpl())->host();
}

}  // namespace neuron
