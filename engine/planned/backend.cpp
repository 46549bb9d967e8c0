// Kernels, copies and queues that only log their work, if a log is set, over a memory source that
// only counts.
#include "engine/planned/backend.h"

#include <atomic>
#include <cstdint>
#include <cstring>

#include "engine/device/memory.h"
#include "engine/planned/work_log.h"

namespace tessera {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t large_block = std::size_t{1} << 20;

// Addresses without memory behind them. Rounds blocks like the device for which the plan is made.
// Access to an address faults at once: no valid address of x86-64 begins with these bits.
// Thread-safe.
class CountingSource final : public MemorySource {
 public:
  explicit CountingSource(DeviceType stands_for) : stands_for_(stands_for) {}

  // The same rounding as in Heap and Arena.
  [[nodiscard]] std::size_t granularity(std::size_t bytes) const override {
    if (bytes >= large_block) return page;
    return stands_for_ == DeviceType::cuda ? 256 : 64;
  }
  // Every call returns addresses that were not returned before.
  [[nodiscard]] std::byte* take(std::size_t bytes) override {
    const std::uint64_t first = next_.fetch_add((bytes + page - 1) / page * page);
    return reinterpret_cast<std::byte*>(first);  // NOLINT(performance-no-int-to-ptr): on purpose
  }
  void give_back(std::byte* /*block*/, std::size_t /*bytes*/) override {}
  [[nodiscard]] bool has_pages() const override { return stands_for_ == DeviceType::cpu; }
  [[nodiscard]] bool discard(std::byte* /*block*/, std::size_t bytes) override {
    return stands_for_ == DeviceType::cpu && bytes >= smallest_discarded;
  }

 private:
  DeviceType stands_for_;
  std::atomic<std::uint64_t> next_{std::uint64_t{1} << 60};
};

class PlannedPoint final : public QueuePoint {
 public:
  explicit PlannedPoint(LoggedPoint point) : point_(point) {}
  [[nodiscard]] LoggedPoint logged() const { return point_; }
  [[nodiscard]] bool reached() const override { return true; }
  void synchronize() const override {
    if (WorkLog* const log = work_log()) log->wait(WorkLog::host, point_);
  }
  [[nodiscard]] double seconds_since(const QueuePoint& /*earlier*/) const override { return 0; }

 private:
  LoggedPoint point_;
};

// The thread's own queue of the host is the log's first lane, in which its program runs.
class PlannedQueue final : public DeviceQueue {
 public:
  PlannedQueue(Device device, std::string_view name) : device_(device) {
    if (WorkLog* const log = work_log()) {
      lane_ = name == "compute" && on_host() ? WorkLog::host : log->add_lane(name);
    }
  }
  [[nodiscard]] Device device() const override { return device_; }
  [[nodiscard]] kernels::Queue native() override { return {this}; }

  [[nodiscard]] PointHandle record() override {
    WorkLog* const log = work_log();
    return log == nullptr ? nullptr : std::make_shared<PlannedPoint>(log->end_of(lane_));
  }
  [[nodiscard]] PointHandle record_timed() override { return record(); }
  void wait(const PointHandle& point) override {
    WorkLog* const log = work_log();
    const auto* const planned = dynamic_cast<const PlannedPoint*>(point.get());
    if (log != nullptr && planned != nullptr) log->wait(lane_, planned->logged());
  }
  void synchronize() override {
    if (WorkLog* const log = work_log()) log->wait(WorkLog::host, log->end_of(lane_));
  }

  void copy(void* /*to*/, const void* /*from*/, std::size_t bytes) override {
    note(LoggedWork::Kind::copy, 2 * bytes);
  }
  void zero(void* /*memory*/, std::size_t bytes) override { note(LoggedWork::Kind::copy, bytes); }
  void copy_from_host(void* /*to*/, const void* /*from*/, std::size_t bytes) override {
    note(LoggedWork::Kind::to_device, bytes);
  }
  // Values that were not computed read as zero, so a step that reads its loss continues.
  void copy_to_host(void* to, const void* /*from*/, std::size_t bytes) override {
    if (bytes > 0) std::memset(to, 0, bytes);
    note(LoggedWork::Kind::to_host, bytes);
    synchronize();
  }
  void enqueue_copy_from_pinned(void* /*to*/, const void* /*from*/, std::size_t bytes) override {
    note(LoggedWork::Kind::to_device, bytes);
  }
  void enqueue_copy_to_pinned(void* /*to*/, const void* /*from*/, std::size_t bytes) override {
    note(LoggedWork::Kind::to_host, bytes);
  }

  void run_own(const OwnWork& work, const std::function<void(void* stream)>& /*enqueue*/) override {
    KernelWork kernel;
    kernel.kernel = KernelId::own_op;
    kernel.dtype = work.dtype;
    kernel.operations = work.operations;
    kernel.bytes = work.bytes;
    note(kernel);
  }

  void note(const KernelWork& kernel) const {
    if (WorkLog* const log = work_log()) {
      LoggedWork work;
      work.kind = LoggedWork::Kind::kernel;
      work.lane = lane_;
      work.kernel = kernel;
      log->add(work);
    }
  }
  void note(LoggedWork::Kind kind, std::size_t bytes) const {
    WorkLog* const log = work_log();
    if (log == nullptr || bytes == 0) return;
    const bool crosses = kind == LoggedWork::Kind::to_device || kind == LoggedWork::Kind::to_host;
    LoggedWork work;
    work.kind = crosses && on_host() ? LoggedWork::Kind::copy : kind;
    work.lane = lane_;
    work.bytes = static_cast<double>(crosses && on_host() ? 2 * bytes : bytes);
    log->add(work);
  }
  [[nodiscard]] std::uint32_t lane() const { return lane_; }

 private:
  [[nodiscard]] bool on_host() const { return device_.stands_for() == DeviceType::cpu; }

  Device device_;
  std::uint32_t lane_ = WorkLog::host;
};

template <class Arguments>
void note_only(const Arguments& arguments, kernels::Queue queue) {
  if (work_log() == nullptr) return;
  static_cast<const PlannedQueue*>(queue.native)->note(work_of(arguments));
}

const kernels::KernelTable& planned_kernels() {
  static constexpr kernels::KernelTable table{
#define TESSERA_PLANNED_KERNEL(name, Arguments) .name = &note_only<kernels::Arguments>,
      TESSERA_KERNELS(TESSERA_PLANNED_KERNEL)
#undef TESSERA_PLANNED_KERNEL
  };
  return table;
}

class PlannedBackend final : public Backend {
 public:
  // One for each type of device for which a plan can be made.
  [[nodiscard]] int device_count() const override { return 2; }
  [[nodiscard]] std::string unavailable_reason() const override { return {}; }
  [[nodiscard]] std::vector<DeviceDescription> describe() const override { return {}; }
  [[nodiscard]] std::string matrix_products() const override { return "none: work is counted"; }

  [[nodiscard]] const kernels::KernelTable& kernels() const override { return planned_kernels(); }
  [[nodiscard]] std::unique_ptr<DeviceQueue> make_queue(Device device, std::string_view name,
                                                        QueuePriority) const override {
    return std::make_unique<PlannedQueue>(device, name);
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

std::uint32_t planned_lane(Device device) {
  const auto* const queue = dynamic_cast<const PlannedQueue*>(&current_queue(device));
  return queue == nullptr ? WorkLog::host : queue->lane();
}

const Backend& planned_backend() {
  static const PlannedBackend backend;
  return backend;
}

}  // namespace tessera
