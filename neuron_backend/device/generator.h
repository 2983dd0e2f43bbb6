// Random numbers of the device: one generator per device, which is a seed and an offset.
#pragma once

#include "memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

#include <array>
#include <cstring>
#include <mutex>
#include <vector>

namespace neuron {

// Programs compute the numbers: what they draw is a function of the seed and of the offset at which they draw it. As
// everywhere in torch, callers hold the generator's own mutex.
struct GeneratorImpl final : c10::GeneratorImpl {
  GeneratorImpl(c10::DeviceIndex index, uint64_t seed, uint64_t offset = 0)
      : c10::GeneratorImpl(c10::Device(kNeuron, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        seed_(seed),
        offset_(offset) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override {
    offset_ = offset;
  }
  uint64_t get_offset() const override {
    return offset_;
  }
  uint64_t current_seed() const override {
    return seed_;
  }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  // 16 bytes: seed and offset, as on the host.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({kStateBytes}, at::TensorOptions(at::kCPU).dtype(at::kByte));
    auto* bytes = state.data_ptr<uint8_t>();
    std::memcpy(bytes, &seed_, sizeof(seed_));
    std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(
        state.device().is_cpu() && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
            state.numel() == kStateBytes && state.is_contiguous(),
        "expected the state of a neuron generator: a contiguous CPU tensor of ",
        kStateBytes,
        " bytes, as get_state() of one returns it");
    const auto* bytes = static_cast<const uint8_t*>(state.data());
    std::memcpy(&seed_, bytes, sizeof(seed_));
    std::memcpy(&offset_, bytes + sizeof(seed_), sizeof(offset_));
  }

  // Takes `count` steps and returns the offset of the first.
  uint64_t advance(uint64_t count) {
    const uint64_t before = offset_;
    offset_ += count;
    return before;
  }
  // Takes back the last `count` steps, the first of them at `before`, unless there were others since.
  void retreat(uint64_t before, uint64_t count) {
    if (offset_ == before + count) {
      offset_ = before;
    }
  }

 private:
  static constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

  GeneratorImpl* clone_impl() const override {
    return new GeneratorImpl(device().index(), seed_, offset_);
  }

  uint64_t seed_;
  uint64_t offset_;
};

inline at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<GeneratorImpl>(index, c10::default_rng_seed_val);
}

// The device's default generator, seeded from the system as the host's default generator is.
inline const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* all = [] {
    auto* made = new std::array<at::Generator, kMaxDevices>();
    for (c10::DeviceIndex each = 0; each < device_count(); ++each) {
      (*made)[static_cast<size_t>(each)] =
          at::make_generator<GeneratorImpl>(each, c10::detail::getNonDeterministicRandom());
    }
    return made;
  }();
  check_index(index);
  return (*all)[static_cast<size_t>(index)];
}

// Takes `count` steps of a neuron generator; returns its seed and the offset of the first step.
inline std::array<uint64_t, 2> take(at::Generator generator, uint64_t count) {
  TORCH_CHECK(
      generator.device().type() == kNeuron, "expected a generator of 'cpu' or 'neuron', got ", generator.device());
  const std::lock_guard<std::mutex> lock(generator.mutex());
  auto* implementation = static_cast<GeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  return {implementation->current_seed(), implementation->advance(count)};
}

// Takes `count` steps back that `take` took at `offset`, for a program that did not run.
inline void take_back(at::Generator generator, uint64_t offset, uint64_t count) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  static_cast<GeneratorImpl*>(generator.unsafeGetGeneratorImpl())->retreat(offset, count);
}

// What a program that draws `count` times gets: seed and offset as two int32[2] on the host, low word first.
inline std::vector<at::Tensor> draw(const at::Generator& generator, int64_t count) {
  std::vector<at::Tensor> words;
  for (const uint64_t number : take(generator, static_cast<uint64_t>(count))) {
    at::Tensor each = at::empty({2}, at::TensorOptions(at::kCPU).dtype(at::kInt));
    auto* data = each.data_ptr<int32_t>();
    data[0] = static_cast<int32_t>(static_cast<uint32_t>(number));
    data[1] = static_cast<int32_t>(static_cast<uint32_t>(number >> 32));
    words.push_back(std::move(each));
  }
  return words;
}

// A host generator for one operator that runs there: a host generator itself, or a new one whose seed is a hash of the
// neuron generator's seed and offset (the finaliser of MurmurHash3), which takes one step.
inline at::Generator host_generator(const at::Generator& generator) {
  if (generator.device().is_cpu()) {
    return generator;
  }
  const auto [seed, offset] = take(generator, 1);
  uint64_t mixed = seed ^ (offset * 0x9e3779b97f4a7c15ULL);
  mixed = (mixed ^ (mixed >> 33)) * 0xff51afd7ed558ccdULL;
  mixed = (mixed ^ (mixed >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return at::detail::createCPUGenerator(mixed ^ (mixed >> 33));
}

}  // namespace neuron
