// Saving and loading checkpoints next to plain writing and reading of the same bytes, in one run.
//   checkpoint_bench [MiB of state = 512] [ranks = 2] [folder = the current one] [repeats = 5]
// One third of the state is the model's, two thirds the optimizer's; every tensor is cut over the
// ranks as FSDP does. "stall" is what a training step pays for an asynchronous save: a copy.
#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checksum.h"
#include "checkpoint/file.h"
#include "checkpoint/snapshot.h"
#include "kernels/base/error.h"
#include "sharding/comm/world.h"

namespace {

namespace fs = std::filesystem;
using namespace tessera;
using checkpoint::File;
using checkpoint::State;

constexpr int layers = 24;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A rank's shard of `layers` tensors and two moments for each.
struct Shard {
  State state;
  std::vector<float> memory;

  Shard(std::int64_t elements, int rank, int world) {
    const std::int64_t part = (elements + world - 1) / world;
    const std::int64_t first = std::min(elements, part * rank);
    const std::int64_t count = std::min(part, elements - first);
    memory.resize(static_cast<std::size_t>(count * layers * 3), 0.5f);
    std::int64_t next = 0;
    const auto add = [&](std::vector<checkpoint::LogicalTensor>& list, const std::string& name) {
      auto* data = reinterpret_cast<std::byte*>(memory.data() + next * count);
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

// As a save does, the new bytes are written while the old ones are there: page cache that is
// already free is cheaper.
void plain_write(const fs::path& path, const std::vector<std::byte>& block, std::uint64_t bytes) {
  fs::path fresh = path;
  fresh += ".new";
  File file = File::create_or_truncate(fresh);
  for (std::uint64_t done = 0; done < bytes; done += block.size()) {
    file.write_at(done, block.data(),
                  static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), bytes - done)));
  }
  file.sync();
  file.close();
  checkpoint::rename_path(fresh, path);
}

// Into memory of the file's size, as a load does.
void plain_read(const fs::path& path, std::vector<std::byte>& memory, bool with_checksum) {
  const File file = File::open_for_reading(path);
  constexpr std::size_t block = std::size_t{1} << 20;
  std::uint64_t sum = 0;
  for (std::size_t done = 0; done < memory.size(); done += block) {
    const std::size_t part = std::min(block, memory.size() - done);
    file.read_at(done, memory.data() + done, part);
    if (with_checksum) sum ^= checkpoint::checksum(memory.data() + done, part);
  }
  if (with_checksum && sum == 1) fmt::print("an unlikely sum\n");  // the work must not be dropped
}

// Starts ranks with their shards in memory, and times what they do between two barriers.
// `prepare` comes before.
using RankWork = std::function<void(comm::Communicator&, State&)>;
double on_ranks(int world, std::int64_t elements, const RankWork& work,
                const RankWork& prepare = {}) {
  double seconds = 0;
  comm::run_local(world, [&](const auto& communicator) {
    Shard shard(elements, communicator->rank(), world);
    if (prepare) prepare(*communicator, shard.state);
    communicator->barrier();
    const double own = seconds_of([&] {
      work(*communicator, shard.state);
      communicator->barrier();
    });
    if (communicator->rank() == 0) seconds = own;
  });
  return seconds;
}

struct Row {
  std::string name;
  std::function<double()> run;
  std::vector<double> seconds = {};
};

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t mebibytes = argc > 1 ? std::atoll(argv[1]) : 512;
  const int world = argc > 2 ? std::atoi(argv[2]) : 2;
  const fs::path folder = fs::path(argc > 3 ? argv[3] : ".") / "tessera-checkpoint-bench";
  const int repeats = argc > 4 ? std::atoi(argv[4]) : 5;
  const std::int64_t elements = (mebibytes << 20) / 4 / 3 / layers;
  const auto bytes = static_cast<std::uint64_t>(elements) * 4 * 3 * layers;
  fs::create_directories(folder);
  const fs::path plain = folder / "plain";
  const std::vector<std::byte> block(std::size_t{1} << 20, std::byte{63});
  std::vector<std::byte> memory(static_cast<std::size_t>(bytes), std::byte{63});

  const auto save_as = [&](const char* name, checkpoint::StateDictType type) {
    return on_ranks(world, elements, [&, type](comm::Communicator& communicator, State& state) {
      checkpoint::save(communicator, folder / name, 1, state, {.type = type});
    });
  };
  const auto load_from = [&](const char* name) {
    return on_ranks(world, elements, [&](comm::Communicator& communicator, State& state) {
      checkpoint::load(communicator, folder / name / "step-1", state);
    });
  };
  const auto stall = [&] {
    std::vector<checkpoint::Snapshot> snapshots(static_cast<std::size_t>(world));
    const auto take = [&](comm::Communicator& communicator, State& state) {
      (void)snapshots[static_cast<std::size_t>(communicator.rank())].take(state, Device::cpu(),
                                                                          DType::float32);
    };
    return on_ranks(world, elements, take, take);  // the first one makes the memory
  };
  const auto full = checkpoint::StateDictType::full;
  const auto sharded = checkpoint::StateDictType::sharded;
  std::vector<Row> rows{
      {"plain write + fsync, one thread",
       [&] { return seconds_of([&] { plain_write(plain, block, bytes); }); }},
      {"save FULL", [&] { return save_as("full", full); }},
      {"save SHARDED", [&] { return save_as("sharded", sharded); }},
      {"stall of an asynchronous save", stall},
      {"plain read, one thread",
       [&] { return seconds_of([&] { plain_read(plain, memory, false); }); }},
      {"plain read + XXH3, one thread",
       [&] { return seconds_of([&] { plain_read(plain, memory, true); }); }},
      {"load FULL", [&] { return load_from("full"); }},
      {"load SHARDED", [&] { return load_from("sharded"); }},
  };
  // Page cache that was just freed is several times cheaper to fill than memory that nobody has
  // touched; every row begins with as much of the former.
  const auto recycle = [&] {
    plain_write(folder / "recycled", block, bytes);
    fs::remove(folder / "recycled");
  };
  for (Row& row : rows) row.run();  // not counted; from here on every row finds its files
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (Row& row : rows) {
      recycle();
      row.seconds.push_back(row.run());
    }
  }
  fmt::print("{} MB of state, {} ranks, {} repeats, reads from the page cache\n", bytes / 1'000'000,
             world, repeats);
  for (const Row& row : rows) {
    const double reference = median(rows[&row - rows.data() < 4 ? 0 : 4].seconds);
    const double seconds = median(row.seconds);
    fmt::print("{:34} {:8.0f} MB/s  {:5.2f} of plain\n", row.name,
               static_cast<double>(bytes) / 1e6 / seconds, reference / seconds);
  }
  fmt::print("a stall is {:.1f} % of a FULL save and {:.1f} % of a SHARDED one\n",
             100 * median(rows[3].seconds) / median(rows[1].seconds),
             100 * median(rows[3].seconds) / median(rows[2].seconds));
  fs::remove_all(folder);
  return 0;
}
