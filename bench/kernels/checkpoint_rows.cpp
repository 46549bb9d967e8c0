// Saving and loading checkpoints, compared with plain writing, reading or copying of the same
// bytes. One third of the state is the model's, two thirds the optimizer's; every tensor is sharded
// over the ranks as in FSDP. `stall` is the time that a training step pays for an asynchronous
// save: a copy.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/parallel.h"
#include "bench/kernels/rows.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/io/checksum.h"
#include "checkpoint/io/file.h"
#include "checkpoint/io/removal.h"
#include "checkpoint/state/snapshot.h"
#include "comm/world.h"
#include "engine/device/memory.h"

namespace tessera::bench {
namespace {

namespace fs = std::filesystem;
using checkpoint::File;
using checkpoint::State;

constexpr int layers = 24;

double passed_seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Memory as a run's tensors have it, on huge pages if the system provides them, filled with
// `value`.
std::shared_ptr<std::byte> pool_memory(std::size_t bytes, int value) {
  std::shared_ptr<std::byte> memory = MemoryPool::current(Device::cpu())->allocate(bytes);
  std::memset(memory.get(), value, bytes);
  return memory;
}

// A rank's shard of `layers` tensors and of two moments for each.
struct Shard {
  State state;
  std::shared_ptr<std::byte> memory;

  Shard(std::int64_t elements, int rank, int world) {
    const std::int64_t part = (elements + world - 1) / world;
    const std::int64_t first = std::min(elements, part * rank);
    const std::int64_t count = std::min(part, elements - first);
    const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
    memory = pool_memory(bytes * layers * 3, 63);
    std::size_t next = 0;
    const auto add = [&](std::vector<checkpoint::LogicalTensor>& list, const std::string& name) {
      auto* data = memory.get() + next * bytes;
      list.push_back({name, DType::float32, {elements}, {{first, count, data}}});
      ++next;
    };
    for (int layer = 0; layer < layers; ++layer) {
      const std::string name = fmt::format("layers.{}.weight", layer);
      add(state.model, name);
      add(state.optimizer, name + ".exp_avg");
      add(state.optimizer, name + ".exp_avg_sq");
    }
    state.scalars.set("step", 1);
  }
};

using RankWork = std::function<void(comm::Communicator&, State&)>;

// The folder of a row of checkpoints; it is removed with this object.
class CheckpointBench {
 public:
  explicit CheckpointBench(const WholeOptions& options)
      : world_(options.ranks),
        elements_(std::max<std::int64_t>(1, (options.state_mib << 20) / 4 / 3 / layers)),
        bytes_(static_cast<std::uint64_t>(elements_) * 4 * 3 * layers),
        folder_(fs::path(options.folder) / fmt::format("tessera-kernels-bench-{}", getpid())),
        block_(std::size_t{1} << 20, std::byte{63}),
        memory_(pool_memory(static_cast<std::size_t>(bytes_), 63)) {
    fs::create_directories(folder_);
  }
  ~CheckpointBench() { checkpoint::try_remove_tree(folder_); }
  CheckpointBench(const CheckpointBench&) = delete;
  CheckpointBench& operator=(const CheckpointBench&) = delete;

  [[nodiscard]] double bytes() const { return static_cast<double>(bytes_); }

  // As in a save, the new bytes are written while the old ones exist: page cache that is already
  // free is cheaper.
  void plain_write() { write_file("plain"); }
  void write_file(const char* name) {
    fs::path fresh = folder_ / name;
    fresh += ".new";
    File file = File::create_or_truncate(fresh);
    for (std::uint64_t done = 0; done < bytes_; done += block_.size()) {
      const auto part = std::min<std::uint64_t>(block_.size(), bytes_ - done);
      file.write_at(done, block_.data(), static_cast<std::size_t>(part));
    }
    file.sync();
    file.close();
    checkpoint::rename_path(fresh, folder_ / name);
  }
  // Reads into memory of the file's size, as a load does.
  void plain_read() { read_file(false); }
  void read_file(bool with_checksum) {
    const File file = File::open_for_reading(folder_ / "plain");
    std::uint64_t sum = 0;
    for (std::uint64_t done = 0; done < bytes_; done += block_.size()) {
      const auto part =
          static_cast<std::size_t>(std::min<std::uint64_t>(block_.size(), bytes_ - done));
      file.read_at(done, memory_.get() + done, part);
      if (with_checksum) sum ^= checkpoint::checksum(memory_.get() + done, part);
    }
    benchmark::DoNotOptimize(sum);
  }
  void plain_copy() {
    if (!copied_) copied_ = pool_memory(static_cast<std::size_t>(bytes_), 0);
    std::memcpy(copied_.get(), memory_.get(), static_cast<std::size_t>(bytes_));
    benchmark::DoNotOptimize(copied_.get());
    benchmark::ClobberMemory();
  }
  // Page cache that was just freed is several times cheaper to fill than memory that was never
  // touched. Every timing begins with the same amount of the former.
  void recycle() {
    write_file("recycled");
    checkpoint::remove_tree(folder_ / "recycled");
  }
  // Ranks with their shards in memory, and their work between two barriers. `prepare` comes before.
  double on_ranks(const RankWork& work, const RankWork& prepare = {}) const {
    double seconds = 0;
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    comm::run_local(world_, [&](const auto& communicator) {
      set_compute_threads(std::max(1, cores / world_));
      Shard shard(elements_, communicator->rank(), world_);
      if (prepare) prepare(*communicator, shard.state);
      communicator->barrier();
      const double own = passed_seconds([&] {
        work(*communicator, shard.state);
        communicator->barrier();
      });
      if (communicator->rank() == 0) seconds = own;
    });
    return seconds;
  }
  double save(checkpoint::StateDictType type) const {
    return on_ranks([&](comm::Communicator& communicator, State& state) {
      checkpoint::save(communicator, folder_ / "saved", 1, state, {.type = type});
    });
  }
  double load() const {
    return on_ranks([&](comm::Communicator& communicator, State& state) {
      checkpoint::load(communicator, folder_ / "saved" / "step-1", state);
    });
  }
  double stall() const {
    std::vector<checkpoint::Snapshot> snapshots(static_cast<std::size_t>(world_));
    const auto take = [&](comm::Communicator& communicator, State& state) {
      (void)snapshots[static_cast<std::size_t>(communicator.rank())].take(state, Device::cpu(),
                                                                          DType::float32);
    };
    return on_ranks(take, take);  // the first call allocates the memory
  }

 private:
  int world_;
  std::int64_t elements_;
  std::uint64_t bytes_;
  fs::path folder_;
  std::vector<std::byte> block_;
  std::shared_ptr<std::byte> memory_, copied_;
};

struct CheckpointRow {
  const char* name;
  void (CheckpointBench::*bound)();                       // the same bytes, by one thread
  std::function<void(CheckpointBench&)> begin;            // once, not timed; may be empty
  std::function<double(CheckpointBench&)> timed_seconds;  // in one round
};

std::vector<CheckpointRow> checkpoint_rows() {
  using checkpoint::StateDictType;
  const auto saved_as = [](StateDictType type) {
    return [type](CheckpointBench& bench) { (void)bench.save(type); };
  };
  const auto save_as = [](StateDictType type) {
    return [type](CheckpointBench& bench) { return bench.save(type); };
  };
  const auto write = &CheckpointBench::plain_write, read = &CheckpointBench::plain_read;
  const auto load = [](CheckpointBench& bench) { return bench.load(); };
  return {
      {"save_full", write, {}, save_as(StateDictType::full)},
      {"save_sharded", write, {}, save_as(StateDictType::sharded)},
      {"asynchronous_stall",
       &CheckpointBench::plain_copy,
       {},
       [](CheckpointBench& bench) { return bench.stall(); }},
      {"read_with_checksum",
       read,
       {},
       [](CheckpointBench& bench) { return passed_seconds([&] { bench.read_file(true); }); }},
      {"load_full", read, saved_as(StateDictType::full), load},
      {"load_sharded", read, saved_as(StateDictType::sharded), load},
  };
}

void measure_checkpoint(benchmark::State& state, const CheckpointRow& row,
                        const WholeOptions& options) {
  try {
    CheckpointBench bench(options);
    bench.plain_write();
    if (row.begin) row.begin(bench);
    (void)row.timed_seconds(bench);  // later calls find its files
    std::vector<Measured> rounds;
    for (auto unused : state) {
      static_cast<void>(unused);
      bench.recycle();
      const double bound = passed_seconds([&] { (bench.*row.bound)(); });
      bench.recycle();
      rounds.push_back({row.timed_seconds(bench), bound});
      state.SetIterationTime(rounds.back().seconds);
    }
    report(state, bench.bytes(), rounds);
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());
  }
}

}  // namespace

void add_checkpoint_rows(const WholeOptions& options) {
  for (const CheckpointRow& row : checkpoint_rows()) {
    const std::string name = fmt::format("checkpoint/{}/{}", row.name, options.ranks);
    benchmark::RegisterBenchmark(
        name.c_str(),
        [row, options](benchmark::State& state) { measure_checkpoint(state, row, options); })
        ->Iterations(std::max(1, options.rounds / 3))
        ->UseManualTime();
  }
}

}  // namespace tessera::bench
