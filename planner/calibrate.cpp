// The trainings that are timed, and the evaluation of their times.
#include "planner/calibrate.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "base/parallel.h"
#include "base/write_failure.h"
#include "checkpoint/io/removal.h"
#include "comm/file_descriptor.h"
#include "planner/environment.h"
#include "planner/kernel_times.h"
#include "training/recipe/recipe.h"
#include "training/recipe_trainer.h"

namespace tessera::planner {
namespace {

using CalibrationClock = std::chrono::steady_clock;
double seconds_since(CalibrationClock::time_point begin) {
  return std::chrono::duration<double>(CalibrationClock::now() - begin).count();
}

constexpr int warm_up_steps = 2;
constexpr std::size_t large_bytes = std::size_t{64} << 20;
constexpr int disk_blocks = 5;

// Sizes similar to those of models that CPUs train.
struct Reference {
  const char* name;
  const char* model;
  int batch;
};
constexpr Reference references[] = {
    {"gpt2, 192 wide", "{architecture: gpt2, n_layer: 2, n_head: 3, n_embd: 192, seq_len: 128}", 4},
    {"gpt2, 512 wide", "{architecture: gpt2, n_layer: 2, n_head: 8, n_embd: 512, seq_len: 256}", 8},
    {"llama, 320 wide",
     "{architecture: llama, hidden_size: 320, intermediate_size: 864, num_hidden_layers: 2, "
     "num_attention_heads: 5, num_key_value_heads: 5, seq_len: 256}",
     4},
};
constexpr const char* precisions[] = {"no", "bf16", "fp16"};

training::Recipe reference_recipe(const Reference& reference, const std::string& precision,
                                  const std::filesystem::path& corpus) {
  const std::string text = fmt::format(
      "model: {}\ndata: {{train: \"{}\", tokenizer: bytes, batch_size: {}}}\n"
      "train: {{steps: 100, device: cpu, max_grad_norm: 1.0}}\n"
      "sharding: {{sharding_strategy: FULL_SHARD, mixed_precision: {}}}\n",
      reference.model, corpus.string(), reference.batch, precision);
  return training::parse_recipe(text, "a calibration", {});
}

// Times for one number of ranks, from all trainings and ranks.
class Samples {
 public:
  void add(const TimedKernel& timed) {
    const KernelWork& work = timed.work;
    Entry& entry = entries_[{static_cast<int>(work.kernel), static_cast<int>(work.dtype), work.m,
                             work.n, work.k, work.batch, work.bytes}];
    entry.work = work;
    entry.seconds.push_back(timed.seconds);
  }
  void take(Samples&& other) {
    for (auto& [key, entry] : other.entries_) {
      Entry& mine = entries_[key];
      mine.work = entry.work;
      mine.seconds.insert(mine.seconds.end(), entry.seconds.begin(), entry.seconds.end());
    }
  }
  // The mean of the times up to twice the median: longer ones were interrupted.
  [[nodiscard]] std::vector<MeasuredKernel> means(int ranks) const {
    std::vector<MeasuredKernel> all;
    for (const auto& [key, entry] : entries_) {
      std::vector<double> sorted = entry.seconds;
      std::sort(sorted.begin(), sorted.end());
      const double most = 2 * sorted[sorted.size() / 2];
      double sum = 0;
      double kept = 0;
      for (const double seconds : sorted) {
        if (seconds > most) break;
        sum += seconds;
        ++kept;
      }
      const double mean = sum / kept;
      if (mean > 0 && (entry.work.bytes > 0 || entry.work.operations > 0)) {
        all.push_back({entry.work, ranks, mean});
      }
    }
    return all;
  }

 private:
  struct Entry {
    KernelWork work;
    std::vector<double> seconds;
  };
  using Key = std::tuple<int, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t, double>;
  std::map<Key, Entry> entries_;
};

struct Training {
  Samples samples;
  double inside = 0;   // seconds of a step in kernels
  double outside = 0;  // seconds of a step outside of kernels
  double kernels = 0;  // launched in a step
};

Training time_training(const training::Recipe& recipe, const Context& context, int steps) {
  Training training;
  Trainer run = training::make_trainer(recipe, context);
  KernelTimes times;
  for (int step = 0; step < warm_up_steps; ++step) (void)run.step();
  std::vector<double> outside, all_inside;
  for (int step = 0; step < steps; ++step) {
    times.clear();
    const StepMetrics metrics = run.step().value();  // no signals are noted here
    double inside = 0;
    for (const TimedKernel& timed : times.times()) {
      inside += timed.seconds;
      training.samples.add(timed);
    }
    // Waiting for side streams is not counted: their work is planned separately.
    outside.push_back(metrics.step_s - metrics.exposed_comm_s - inside);
    all_inside.push_back(inside);
    training.kernels = static_cast<double>(times.times().size());
  }
  std::sort(outside.begin(), outside.end());
  std::sort(all_inside.begin(), all_inside.end());
  training.outside = std::max(0.0, outside[outside.size() / 2]);
  training.inside = all_inside[all_inside.size() / 2];
  return training;
}

// Runs `ranks` independent trainings at the same time and times a rank's kernels while the others
// compute as well. Communication between ranks is timed separately.
Training time_side_by_side(const training::Recipe& recipe, int ranks, int steps) {
  std::mutex mutex;
  std::barrier start(ranks);
  Training all;
  std::exception_ptr failure;
  const auto train = [&] {
    try {
      launch(1, [&](Context& context) {
        if (ranks > 1) set_compute_threads(1);
        start.arrive_and_wait();
        Training mine = time_training(recipe, context, steps);
        const std::lock_guard lock(mutex);
        all.samples.take(std::move(mine.samples));
        all.inside = mine.inside;
        all.outside = mine.outside;
        all.kernels = mine.kernels;
      });
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
      start.arrive_and_drop();  // the others need not wait for this one
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(train);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  return all;
}

// The bytes per second that each of `threads` copies at the same time, read and written.
double copy_rate(int threads) {
  std::vector<double> rates(static_cast<std::size_t>(threads));
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) {
    pool.emplace_back([&rate = rates[static_cast<std::size_t>(i)]] {
      const std::vector<char> from(large_bytes, 1);
      std::vector<char> to(large_bytes, 2);
      double best = 0;
      for (int round = 0; round < 5; ++round) {
        const auto begin = CalibrationClock::now();
        std::memcpy(to.data(), from.data(), large_bytes);
        best = std::max(best, 2.0 * large_bytes / seconds_since(begin));
      }
      rate = best;
    });
  }
  for (std::thread& thread : pool) thread.join();
  return *std::min_element(rates.begin(), rates.end());
}

// Measures a reduction of a few megabytes on each rank, and a collective with almost no data.
Link link_between(int ranks) {
  Link link;
  launch(ranks, [&](Context& context) {
    comm::Communicator& group = context.communicator();
    constexpr std::int64_t elements = std::int64_t{1} << 21;
    const auto buffer =
        group.allocate("calibration", elements * sizeof(float), comm::Sharing::per_rank);
    const auto small =
        group.allocate("latency", 128 * static_cast<std::size_t>(ranks), comm::Sharing::one_copy);
    const std::int64_t share = elements / ranks;
    std::vector<float> sums(static_cast<std::size_t>(share));
    double best = 1e9;
    for (int round = 0; round < 8; ++round) {
      group.acquire(*buffer);
      std::memset(buffer->data(), 0, elements * sizeof(float));
      group.barrier();
      const auto begin = CalibrationClock::now();
      group.reduce_scatter(*buffer, {{share * context.rank(), share, sums.data()}}, {}, {});
      best = std::min(best, seconds_since(begin));
    }
    constexpr int calls = 200;
    const auto begin = CalibrationClock::now();
    for (int call = 0; call < calls; ++call) {
      group.acquire(*small);
      group.all_gather(*small, small->bytes(), {});
      small->release();
    }
    const double latency = seconds_since(begin) / calls;
    if (context.rank() != 0) return;
    link.latency = latency;
    link.rate = static_cast<double>(share) * sizeof(float) * (ranks + 1) / best;
  });
  return link;
}

struct DiskRates {
  double read, write;
};

// Measures several blocks of the file without the page cache; nullopt if the file system has no
// direct I/O.
std::optional<DiskRates> disk_rates(const std::filesystem::path& folder) {
  std::string name = (folder / "tessera-XXXXXX").string();
  const comm::FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
  TESSERA_CHECK(file.get() != -1, ErrorCode::configuration, "--calibrate: {} cannot be written: {}",
                folder.string(), describe_errno("mkostemp", errno));
  checkpoint::try_remove_tree(name);
  if (::fcntl(file.get(), F_SETFL, O_DIRECT) == -1) return std::nullopt;
  struct Free {
    void operator()(void* block) const { std::free(block); }
  };
  const std::unique_ptr<void, Free> block(std::aligned_alloc(4096, large_bytes));
  TESSERA_CHECK(block != nullptr, ErrorCode::out_of_memory, "no memory for a block of the disk");
  std::memset(block.get(), 1, large_bytes);
  bool direct = true;
  // The median rate over the blocks; `transfer` returns the bytes that it moved at an offset.
  const auto timed = [&](auto&& transfer) {
    std::vector<double> rates;
    for (int i = 0; i < disk_blocks && direct; ++i) {
      const auto begin = CalibrationClock::now();
      const ssize_t moved = transfer(static_cast<off_t>(large_bytes) * i);
      if (moved == -1 && errno == EINVAL) {  // refused by the first transfer, not by fcntl
        direct = false;
        break;
      }
      TESSERA_CHECK(moved == static_cast<ssize_t>(large_bytes), ErrorCode::runtime,
                    "--calibrate: a transfer in {} ended early: {}", folder.string(),
                    moved == -1 ? describe_errno("pread or pwrite", errno)
                                : fmt::format("{} of {} bytes", moved, large_bytes));
      rates.push_back(static_cast<double>(large_bytes) / seconds_since(begin));
    }
    std::sort(rates.begin(), rates.end());
    return rates.empty() ? 0.0 : rates[rates.size() / 2];
  };
  DiskRates rates{};
  rates.write = timed([&](off_t at) {
    const ssize_t put = ::pwrite(file.get(), block.get(), large_bytes, at);
    return put == -1 || ::fdatasync(file.get()) == 0 ? put : -1;
  });
  rates.read = timed([&](off_t at) { return ::pread(file.get(), block.get(), large_bytes, at); });
  if (!direct) return std::nullopt;
  return rates;
}

// The best product of each dtype; if there is none, the best of any dtype.
void note_best_products(Cluster& cluster, int ranks) {
  for (const MeasuredKernel& one : cluster.measured) {
    if (one.work.kernel != KernelId::matmul || one.ranks != ranks) continue;
    double& best = cluster.matrix_rate[one.work.dtype];
    best = std::max(best, one.work.operations / one.seconds);
  }
}

// The text that the trainings read; removed at the end.
class TemporaryCorpus {
 public:
  explicit TemporaryCorpus(const std::filesystem::path& folder) {
    // A new file: with a name that others can guess, it could be a link of theirs.
    constexpr std::string_view ending = ".txt";
    std::string name = (folder / "tessera-calibration-XXXXXX.txt").string();
    const int made = ::mkostemps(name.data(), static_cast<int>(ending.size()), O_CLOEXEC);
    TESSERA_CHECK(made != -1, full_disk_or(errno, ErrorCode::configuration),
                  "--calibrate: {} cannot be written: {}", folder.string(),
                  describe_errno("mkostemps", errno));
    ::close(made);
    file_ = name;
    std::ofstream stream(file_, std::ios::binary);
    for (int line = 0; line < 20'000; ++line) {
      stream << "line " << line * 2'654'435'761U << " of a text without meaning\n";
    }
    stream.close();
    if (stream.good()) return;
    const int reason = errno;
    checkpoint::try_remove_tree(file_);
    fail(full_disk_or_runtime(reason), "--calibrate: {} cannot be written: {}", file_.string(),
         describe_errno("write", reason));
  }
  ~TemporaryCorpus() { checkpoint::try_remove_tree(file_); }
  TemporaryCorpus(const TemporaryCorpus&) = delete;
  TemporaryCorpus& operator=(const TemporaryCorpus&) = delete;
  [[nodiscard]] const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
};

}  // namespace

Cluster calibrate(const CalibrationOptions& options) {
  const int cores = compute_threads();
  Cluster cluster;
  cluster.device = DeviceType::cpu;
  cluster.per_node = cores;
  cluster.name = fmt::format("this machine, {} core{}", cores, cores == 1 ? "" : "s");
  const TemporaryCorpus corpus(options.folder);
  std::vector<int> situations = {1};
  if (cores > 1) situations.push_back(cores);
  double outside = 0;
  double kernels = 0;
  for (const int ranks : situations) {
    Samples samples;
    for (const Reference& reference : references) {
      for (const char* const precision : precisions) {
        options.progress(fmt::format("{}, {}, {} rank{} at work", reference.name,
                                     precision == precisions[0] ? "fp32" : precision, ranks,
                                     ranks == 1 ? "" : "s"));
        const training::Recipe recipe = reference_recipe(reference, precision, corpus.file());
        Training training = time_side_by_side(recipe, ranks, options.steps);
        samples.take(std::move(training.samples));
        options.progress(fmt::format("  {:.2f} ms a step in {} kernels, {:.2f} ms outside of them",
                                     1e3 * training.inside, training.kernels,
                                     1e3 * training.outside));
        outside += training.outside;
        kernels += training.kernels;
      }
    }
    const std::vector<MeasuredKernel> means = samples.means(ranks);
    cluster.measured.insert(cluster.measured.end(), means.begin(), means.end());
  }
  cluster.launch = kernels > 0 ? outside / kernels : 0;
  note_best_products(cluster, situations.back());
  options.progress("memory, ranks together, disk");
  cluster.memory_rate = copy_rate(cores);
  cluster.inside = link_between(std::max(2, cores));
  if (const auto disk = disk_rates(options.folder)) {
    cluster.disk_read = disk->read;
    cluster.disk_write = disk->write;
  } else {
    options.progress(
        fmt::format("  {} cannot be read without the page cache (O_DIRECT): `disk` is left out; "
                    "name a file on the disk that offload would use",
                    options.folder.string()));
  }
  return cluster;
}

}  // namespace tessera::planner
