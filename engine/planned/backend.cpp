// Kernels, copies and queues that do nothing, over a source that only counts.
#include "engine/planned/backend.h"

#include <cstring>

#include "engine/planned/counting_source.h"

namespace tessera {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t large_block = std::size_t{1} << 20;

template <class Arguments>
void do_nothing(const Arguments& /*arguments*/, kernels::Queue /*queue*/) {}

const kernels::KernelTable& planned_kernels() {
  static constexpr kernels::KernelTable table{
#define TESSERA_PLANNED_KERNEL(name, Arguments) .name = &do_nothing<kernels::Arguments>,
      TESSERA_KERNELS(TESSERA_PLANNED_KERNEL)
#undef TESSERA_PLANNED_KERNEL
  };
  return table;
}

class PlannedQueue final : public DeviceQueue {
 public:
  explicit PlannedQueue(Device device) : device_(device) {}
  [[nodiscard]] Device device() const override { return device_; }
  [[nodiscard]] kernels::Queue native() override { return {}; }

  [[nodiscard]] PointHandle record() override { return nullptr; }
  [[nodiscard]] PointHandle record_timed() override { return nullptr; }
  void wait(const PointHandle& /*point*/) override {}
  void synchronize() override {}

  void copy(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) override {}
  void zero(void* /*memory*/, std::size_t /*bytes*/) override {}
  void copy_from_host(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) override {}
  // What nobody has computed reads as zero: a step that looks at its loss goes on.
  void copy_to_host(void* to, const void* /*from*/, std::size_t bytes) override {
    if (bytes > 0) std::memset(to, 0, bytes);
  }
  void enqueue_copy_from_pinned(void* /*to*/, const void* /*from*/,
                                std::size_t /*bytes*/) override {}
  void enqueue_copy_to_pinned(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) override {}

 private:
  Device device_;
};

class PlannedBackend final : public Backend {
 public:
  // One for each type of device that a plan can be for.
  [[nodiscard]] int device_count() const override { return 2; }
  [[nodiscard]] std::string unavailable_reason() const override { return {}; }
  [[nodiscard]] std::vector<DeviceDescription> describe() const override { return {}; }
  [[nodiscard]] std::string matrix_products() const override { return "none: work is counted"; }

  [[nodiscard]] const kernels::KernelTable& kernels() const override { return planned_kernels(); }
  [[nodiscard]] std::unique_ptr<DeviceQueue> make_queue(Device device,
                                                        std::string_view) const override {
    return std::make_unique<PlannedQueue>(device);
  }
  [[nodiscard]] std::shared_ptr<MemorySource> memory_source(Device device) const override {
    return device.index == static_cast<int>(DeviceType::cuda) ? like_a_gpu_ : like_the_cpu_;
  }
  [[nodiscard]] std::shared_ptr<std::byte> allocate_pinned(std::size_t bytes) const override {
    return pinned_->allocate(bytes);
  }
  void bind_thread(Device) const override {}

 private:
  std::shared_ptr<CountingSource> like_the_cpu_ = std::make_shared<CountingSource>(DeviceType::cpu);
  std::shared_ptr<CountingSource> like_a_gpu_ = std::make_shared<CountingSource>(DeviceType::cuda);
  std::shared_ptr<MemoryPool> pinned_ = MemoryPool::create(like_the_cpu_);
};

}  // namespace

// As Heap and Arena do.
std::size_t CountingSource::granularity(std::size_t bytes) const {
  if (bytes >= large_block) return page;
  return stands_for_ == DeviceType::cuda ? 256 : 64;
}

std::byte* CountingSource::take(std::size_t bytes) {
  const std::uint64_t first = next_.fetch_add((bytes + page - 1) / page * page);
  return reinterpret_cast<std::byte*>(first);  // NOLINT(performance-no-int-to-ptr): on purpose
}

bool CountingSource::discard(std::byte* /*block*/, std::size_t bytes) {
  return stands_for_ == DeviceType::cpu && bytes >= smallest_discarded;
}

const Backend& planned_backend() {
  static const PlannedBackend backend;
  return backend;
}

}  // namespace tessera
