// Memory of the device: allocations with counters per device, a limit, and the state of fork.
//
// Device memory is host memory. Every allocation is a `Block` that counts its references, so that a host view of a
// device tensor (`as_cpu`) stays valid even if the tensor's storage is resized or freed meanwhile.
#pragma once

#include "interpreter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

namespace neuron {

constexpr auto kNeuron = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 64;
constexpr size_t kAlignment = 64;

// ------------------------------------------------------------------------------------------------------------- fork

// A child that was forked after the first use shares the parent's pages but not its threads: a program run there
// would wait for ever for a thread that does not exist.
inline std::atomic<bool> used{false};
inline std::atomic<bool> in_bad_fork{false};

inline void after_fork_in_child() noexcept {
  if (used.load()) {
    in_bad_fork.store(true);
  }
}

inline void check_fork() {
  TORCH_CHECK(
      !in_bad_fork.load(std::memory_order_relaxed),
      "device 'neuron' cannot be used in this process: it was forked after its parent used the device; "
      "start it with the 'spawn' method instead, as in torch.multiprocessing.set_start_method('spawn')");
}

// ---------------------------------------------------------------------------------------------------------- devices

// How many devices this process has: NEURON_BACKEND_DEVICES, 1 to 64. Must not throw: neuron_backend.device.module
// has refused values that mean nothing before this library is loaded.
inline c10::DeviceIndex device_count() noexcept {
  static const c10::DeviceIndex count = [] {
    const char* text = std::getenv("NEURON_BACKEND_DEVICES");
    const std::string_view digits = text == nullptr ? "" : text;
    int value = 1;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return static_cast<c10::DeviceIndex>(value < 1 ? 1 : (value > kMaxDevices ? kMaxDevices : value));
  }();
  return count;
}

inline thread_local c10::DeviceIndex current_device = 0;

inline void check_index(int64_t index) {
  TORCH_CHECK(
      index >= 0 && index < device_count(),
      "there is no device neuron:", index, ": this process has ", static_cast<int>(device_count()),
      device_count() == 1 ? " device" : " devices", ", numbered from 0 (NEURON_BACKEND_DEVICES sets how many)");
}

// The device's index; the current device's if it says none.
inline c10::DeviceIndex index_of(c10::Device device) {
  TORCH_CHECK(device.type() == kNeuron, "expected a neuron device, got ", device);
  if (!device.has_index()) {
    return current_device;
  }
  check_index(device.index());
  return device.index();
}

// --------------------------------------------------------------------------------------------------------- counters

struct Usage {
  std::mutex mutex;
  c10::CachingAllocator::Stat blocks;
  c10::CachingAllocator::Stat bytes;
  int64_t out_of_memory = 0;
};

// Never destroyed: tensors may be freed after static destructors ran.
inline Usage& usage(c10::DeviceIndex index) {
  static auto* all = new std::array<Usage, kMaxDevices>();
  return (*all)[static_cast<size_t>(index)];
}

inline size_t host_memory() {
  const auto pages = sysconf(_SC_PHYS_PAGES);
  const auto page = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page > 0 ? static_cast<size_t>(pages) * static_cast<size_t>(page) : 0;
}

// Bytes that one device may hold: NEURON_BACKEND_MEMORY_LIMIT, or no limit. Throws at every use of a bad value.
inline size_t memory_limit() {
  static const size_t limit = [] {
    const char* text = std::getenv("NEURON_BACKEND_MEMORY_LIMIT");
    if (text == nullptr || *text == '\0') {
      return std::numeric_limits<size_t>::max();
    }
    const std::string_view digits = text;
    size_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    TORCH_CHECK_VALUE(
        error == std::errc() && end == digits.data() + digits.size() && value > 0,
        "NEURON_BACKEND_MEMORY_LIMIT='", text, "' is no number of bytes: expected digits alone, such as 1073741824");
    return value;
  }();
  return limit;
}

inline void count_allocation(c10::DeviceIndex index, size_t bytes) {
  const size_t limit = memory_limit();
  auto& device = usage(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  const auto held = static_cast<size_t>(device.bytes.current);
  if (bytes > limit - std::min(held, limit)) {
    device.out_of_memory += 1;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false,
        "neuron:", static_cast<int>(index), " is out of memory: ", bytes, " bytes were asked for and ", held, " of ",
        limit, " bytes (NEURON_BACKEND_MEMORY_LIMIT) are in use");
  }
  device.blocks.increase(1);
  device.bytes.increase(bytes);
  used.store(true, std::memory_order_relaxed);
}

inline void count_release(c10::DeviceIndex index, size_t bytes) {
  if (in_bad_fork.load(std::memory_order_relaxed)) {
    return;  // the lock may be held by a thread that does not exist here
  }
  auto& device = usage(index);
  const std::lock_guard<std::mutex> lock(device.mutex);
  device.blocks.decrease(1);
  device.bytes.decrease(bytes);
}

// -------------------------------------------------------------------------------------------------------- allocator

// One piece of device memory: allocated here, the memory of a host storage that was taken over, or a program's result.
struct Block {
  void* data;
  size_t bytes;
  c10::DeviceIndex device;
  c10::Storage owner{};  // the host storage
  PyObject* result = nullptr;  // XLA's array, which owns `data`. Without either `data` is ours to free
  std::atomic<size_t> references{1};

  // XLA's array over some of this memory, which it does not own: made when a program is first given it. Under the
  // interpreter's lock only.
  PyObject* input = nullptr;
  const void* input_data = nullptr;
  size_t input_bytes = 0;

  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    if (block == nullptr || block->references.fetch_sub(1, std::memory_order_acq_rel) != 1) {
      return;
    }
    count_release(block->device, block->bytes);
    abandon(block->input);
    abandon(block->result);
    if (!block->owner && block->result == nullptr) {
      std::free(block->data);
    }
    delete block;
  }

  c10::DataPtr share(c10::Device as) {
    references.fetch_add(1, std::memory_order_relaxed);
    return {data, this, &release, as};
  }
};

struct Allocator final : c10::DeviceAllocator {
  // Allocates on the calling thread's current device.
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kNeuron, current_device);
    check_fork();
    if (bytes == 0) {
      return {nullptr, nullptr, &Block::release, device};
    }
    count_allocation(device.index(), bytes);
    void* data = nullptr;
    if (posix_memalign(&data, kAlignment, bytes) != 0) {
      count_release(device.index(), bytes);
      TORCH_CHECK_WITH(
          OutOfMemoryError, false,
          device, " is out of memory: ", bytes, " bytes were asked for and the host, whose memory it uses, has not got "
          "them");
    }
    return {data, new Block{.data = data, .bytes = bytes, .device = device.index()}, &Block::release, device};
  }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  bool initialized() override {
    return true;
  }

  // There is no cache: what is freed goes back to the host at once.
  void emptyCache(c10::MempoolId_t /*pool*/) override {}

  // Programs and copies have ended when their call returns: there is nothing to wait for.
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    check_index(index);
    auto& device = usage(index);
    const std::lock_guard<std::mutex> lock(device.mutex);
    c10::CachingDeviceAllocator::DeviceStats stats;
    constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    stats.allocation[all] = stats.active[all] = stats.segment[all] = device.blocks;
    stats.allocated_bytes[all] = stats.reserved_bytes[all] = stats.active_bytes[all] = stats.requested_bytes[all] =
        device.bytes;
    stats.num_device_alloc = device.blocks.allocated;
    stats.num_device_free = device.blocks.freed;
    stats.num_ooms = device.out_of_memory;
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex index) override {
    check_index(index);
    auto& device = usage(index);
    const std::lock_guard<std::mutex> lock(device.mutex);
    device.blocks.reset_accumulated();
    device.bytes.reset_accumulated();
    device.out_of_memory = 0;
  }

  void resetPeakStats(c10::DeviceIndex index) override {
    check_index(index);
    auto& device = usage(index);
    const std::lock_guard<std::mutex> lock(device.mutex);
    device.blocks.reset_peak();
    device.bytes.reset_peak();
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    check_index(index);
    const size_t total = std::min(memory_limit(), host_memory());
    auto& device = usage(index);
    const std::lock_guard<std::mutex> lock(device.mutex);
    return {total - std::min(total, static_cast<size_t>(device.bytes.current)), total};
  }
};

inline Allocator& allocator() {
  static auto* one = new Allocator();
  return *one;
}

// ---------------------------------------------------------------------------------------------------- pinned memory

// Any host memory will do for copies to this device; only which of it was asked for as pinned is remembered, because
// `tensor.pin_memory().is_pinned()` has to be true.
struct PinnedAllocator final : c10::Allocator {
  struct Piece {
    c10::DataPtr memory;
    PinnedAllocator* home;
  };

  c10::DataPtr allocate(size_t bytes) override {
    auto memory = c10::GetAllocator(c10::DeviceType::CPU)->allocate(bytes);
    void* data = memory.get();
    auto* piece = new Piece{std::move(memory), this};
    if (data != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex_);
      pieces_[reinterpret_cast<uintptr_t>(data)] = bytes;
    }
    return {data, piece, &release, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  bool holds(const void* pointer) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = pieces_.upper_bound(address);
    if (after == pieces_.begin()) {
      return false;
    }
    const auto& [start, bytes] = *--after;
    return address - start < bytes;
  }

 private:
  static void release(void* context) {
    auto* piece = static_cast<Piece*>(context);
    {
      const std::lock_guard<std::mutex> lock(piece->home->mutex_);
      piece->home->pieces_.erase(reinterpret_cast<uintptr_t>(piece->memory.get()));
    }
    delete piece;
  }

  std::mutex mutex_;
  std::map<uintptr_t, size_t> pieces_;
};

inline PinnedAllocator& pinned_allocator() {
  static auto* one = new PinnedAllocator();
  return *one;
}

}  // namespace neuron
