// What torch asks of an accelerator: the device guard and the hooks of PrivateUse1.
//
// Every call has finished its work when it returns, so there is one stream per device and an event is complete as
// soon as it is recorded.
#pragma once

#include "generator.h"
#include "memory.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

namespace neuron {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Time = std::chrono::steady_clock::time_point;

  c10::DeviceType type() const override {
    return kNeuron;
  }
  c10::Device getDevice() const override {
    return {kNeuron, current_device};
  }
  void setDevice(c10::Device device) const override {
    current_device = index_of(device);
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < neuron::device_count()) {
      current_device = device.index();
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return neuron::device_count();
  }

  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kNeuron, index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return getStream(device);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStream(device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return getStream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  bool queryStream(const c10::Stream& /*stream*/) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream& /*stream*/) const override {}
  void synchronizeDevice(c10::DeviceIndex index) const override {
    check_index(index);
  }

  void record(void** event, const c10::Stream& /*stream*/, c10::DeviceIndex /*index*/, c10::EventFlag /*flag*/)
      const override {
    if (*event == nullptr) {
      *event = new Time();
    }
    *static_cast<Time*>(*event) = std::chrono::steady_clock::now();
  }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Time*>(event);
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override {
    return true;
  }
  void synchronizeEvent(void* /*event*/) const override {}
  double elapsedTime(void* first, void* second, c10::DeviceIndex /*index*/) const override {
    TORCH_CHECK(first != nullptr && second != nullptr, "both events must be recorded before the time between them");
    const auto span = *static_cast<Time*>(second) - *static_cast<Time*>(first);
    return std::chrono::duration<double, std::milli>(span).count();
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    check_index(index);
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return neuron::device_count();
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return current_device;
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    check_index(index);
    current_device = index;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = current_device;
    setCurrentDevice(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device : exchangeDevice(index);
  }
  at::Device getDeviceFromPtr(void* /*data*/) const override {
    return {kNeuron, current_device};
  }
  bool isPinnedPtr(const void* data) const override {
    return pinned_allocator().holds(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index < 0 ? current_device : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return new_generator(index_of(c10::Device(kNeuron, index)));
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
    const c10::DeviceGuard guard(storage.device());
    auto data = allocator().allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept > 0) {
      std::memcpy(data.get(), storage.data(), kept);
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

}  // namespace neuron
