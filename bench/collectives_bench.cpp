// Rates of the shared-memory collectives next to memcpy's in the same run, and the barrier's
// latency.
//
//   collectives_bench [--backend shm|local] [--ranks N] [--rounds N] [--json FILE]
//
// A rate is the bytes of the full (unsharded) buffer over the time of the slowest rank. memcpy is
// one process that copies as many bytes between two private buffers. An all-gather starts with each
// rank's share in private memory.
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/parallel.h"
#include "sharding/comm/world.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Ranks = std::shared_ptr<Communicator>;

struct Options {
  int ranks = 2;
  int rounds = 7;
  std::string backend = "shm";
  std::string json;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The slowest rank's time: a collective is as fast as that.
double slowest(const Ranks& ranks, double seconds) {
  double worst = 0;
  for (const std::string& text : ranks->exchange(fmt::format("{:.17g}", seconds))) {
    worst = std::max(worst, std::stod(text));
  }
  return worst;
}

// Seconds of one call of `work`, repeated often enough to be measured.
template <class Work>
double time_of(const Ranks& ranks, std::size_t bytes, Work&& work) {
  const int repetitions =
      static_cast<int>(std::clamp<std::size_t>((std::size_t{64} << 20) / bytes, 2, 200));
  work();
  ranks->barrier();
  const auto begin = Clock::now();
  for (int i = 0; i < repetitions; ++i) work();
  return slowest(ranks, seconds_since(begin)) / repetitions;
}

// What one size needs, allocated once.
class Measured {
 public:
  Measured(const Ranks& ranks, std::size_t bytes)
      : ranks_(ranks),
        bytes_(bytes),
        share_(bytes / static_cast<std::size_t>(ranks->size())),
        gathered_(ranks->allocate("gathered", bytes, Sharing::one_copy)),
        gradients_(ranks->allocate("gradients", bytes, Sharing::per_rank)),
        private_share_(share_, std::byte{1}),
        sum_(share_ / sizeof(float)),
        from_(ranks->rank() == 0 ? bytes : 0, std::byte{2}),
        to_(from_.size()) {
    std::memset(gradients_->data(), 0, bytes);
  }

  // One process copies; the others wait, so that it has the memory to itself.
  double copy() {
    return time_of(ranks_, bytes_, [&] {
      std::memcpy(to_.data(), from_.data(), from_.size());
      asm volatile("" : : "r"(to_.data()) : "memory");
    });
  }
  double all_gather() {
    return time_of(ranks_, bytes_, [&] {
      ranks_->acquire(*gathered_);
      std::memcpy(gathered_->data() + share_ * static_cast<std::size_t>(ranks_->rank()),
                  private_share_.data(), share_);
      ranks_->all_gather(*gathered_, gathered_->bytes(), {});
      gathered_->release();
    });
  }
  double reduce_scatter() {
    const auto count = static_cast<std::int64_t>(sum_.size());
    return time_of(ranks_, bytes_, [&] {
      ranks_->acquire(*gradients_);
      ranks_->reduce_scatter(
          *gradients_, {{.first = count * ranks_->rank(), .count = count, .out = sum_.data()}}, {},
          {});
    });
  }
  double all_reduce() {
    if (whole_.empty()) whole_.resize(bytes_ / sizeof(float));
    const auto count = static_cast<std::int64_t>(whole_.size());
    return time_of(ranks_, bytes_, [&] {
      ranks_->acquire(*gradients_);
      ranks_->all_reduce(*gradients_, count, whole_.data(), {}, {});
    });
  }

 private:
  Ranks ranks_;
  std::size_t bytes_, share_;
  std::shared_ptr<Buffer> gathered_, gradients_;
  std::vector<std::byte> private_share_;
  std::vector<float> sum_, whole_;
  std::vector<std::byte> from_, to_;
};

double barrier_seconds(const Ranks& ranks, int rounds) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    constexpr int repetitions = 2000;
    const auto begin = Clock::now();
    for (int i = 0; i < repetitions; ++i) ranks->barrier();
    times.push_back(slowest(ranks, seconds_since(begin)) / repetitions);
  }
  return median(times);
}

nlohmann::json measure(const Ranks& ranks, const Options& options) {
  const bool prints = ranks->rank() == 0;
  nlohmann::json report{{"benchmark", "collectives"},
                        {"backend", ranks->backend()},
                        {"ranks", ranks->size()},
                        {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
                        {"rows", nlohmann::json::array()}};
  const double barrier = barrier_seconds(ranks, options.rounds);
  report["barrier_us"] = barrier * 1e6;
  if (prints) {
    fmt::print(
        "{} ranks, {} cores, medians of {} rounds; GB/s of the full buffer (ratio to memcpy)\n",
        ranks->size(), sysconf(_SC_NPROCESSORS_ONLN), options.rounds);
    fmt::print("barrier {:.2f} us\n", barrier * 1e6);
    fmt::print("{:>10} {:>10} {:>18} {:>18} {:>18}\n", "KiB", "memcpy", "all_gather",
               "reduce_scatter", "all_reduce");
  }
  for (std::size_t kib = 64; kib <= 65536; kib *= 4) {
    const std::size_t unit = sizeof(float) * static_cast<std::size_t>(ranks->size());
    const std::size_t bytes = kib * 1024 / unit * unit;
    Measured measured(ranks, bytes);
    std::vector<double> copy, gather, scatter, reduce;
    for (int round = 0; round < options.rounds;
         ++round) {  // side by side: the machine's speed drifts
      copy.push_back(measured.copy());
      gather.push_back(measured.all_gather());
      scatter.push_back(measured.reduce_scatter());
      reduce.push_back(measured.all_reduce());
    }
    const auto rate = [bytes](const std::vector<double>& times) {
      return static_cast<double>(bytes) / median(times) / 1e9;
    };
    const auto ratio = [&](const std::vector<double>& times) { return rate(times) / rate(copy); };
    report["rows"].push_back({{"bytes", bytes},
                              {"memcpy_gb_s", rate(copy)},
                              {"all_gather_gb_s", rate(gather)},
                              {"all_gather_ratio", ratio(gather)},
                              {"reduce_scatter_gb_s", rate(scatter)},
                              {"reduce_scatter_ratio", ratio(scatter)},
                              {"all_reduce_gb_s", rate(reduce)},
                              {"all_reduce_ratio", ratio(reduce)}});
    if (prints) {
      fmt::print("{:>10} {:>10.2f} {:>11.2f} ({:.2f}) {:>11.2f} ({:.2f}) {:>11.2f} ({:.2f})\n", kib,
                 rate(copy), rate(gather), ratio(gather), rate(scatter), ratio(scatter),
                 rate(reduce), ratio(reduce));
      std::fflush(stdout);
    }
  }
  return report;
}

// A core of its own for each rank where there are enough. Refused in some containers: then the
// kernel places.
void pin(int rank) {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(static_cast<std::size_t>(rank % sysconf(_SC_NPROCESSORS_ONLN)), &core);
  sched_setaffinity(0, sizeof(core), &core);
}

void run_rank(const Ranks& ranks, const Options& options) {
  set_compute_threads(1);
  const nlohmann::json report = measure(ranks, options);
  if (ranks->rank() != 0 || options.json.empty()) return;
  std::ofstream file(options.json);
  file << report.dump(2) << '\n';
  TESSERA_CHECK(file.good(), ErrorCode::runtime, "cannot write {}", options.json);
}

int report_errors(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "collectives_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}

int run_threads(const Options& options) {
  return report_errors([&] {
    run_local(options.ranks, [&](const Ranks& ranks) {
      pin(ranks->rank());
      run_rank(ranks, options);
    });
  });
}

int run_processes(const Options& options) {
  const int run = getpid();
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int code = report_errors([&] {
        pin(rank);
        run_rank(connect({.rank = rank,
                          .size = options.ranks,
                          .local_rank = rank,
                          .local_size = options.ranks,
                          .run_id = fmt::format("collectives_bench {}", run)}),
                 options);
      });
      std::fflush(nullptr);
      _exit(code);
    }
    if (child > 0) children.push_back(child);
  }
  int result = children.size() == static_cast<std::size_t>(options.ranks) ? 0 : 1;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status)) result = 1;
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) result = WEXITSTATUS(status);
  }
  return result;
}

int parse(int count, char** arguments, Options& options) {
  for (int i = 1; i < count; i += 2) {
    const std::string_view flag = arguments[i];
    const std::string_view value = i + 1 < count ? arguments[i + 1] : "";
    const auto number = [&](int& target) {
      const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), target);
      return status == std::errc{} && end == value.data() + value.size() && target >= 1;
    };
    bool understood = false;
    if (flag == "--ranks") understood = number(options.ranks);
    if (flag == "--rounds") understood = number(options.rounds);
    if (flag == "--backend" && (value == "shm" || value == "local")) {
      options.backend = value;
      understood = true;
    }
    if (flag == "--json" && !value.empty()) {
      options.json = value;
      understood = true;
    }
    if (!understood) {
      fmt::print(stderr,
                 "collectives_bench: '{} {}' is not understood; usage: collectives_bench "
                 "[--backend shm|local] [--ranks N] [--rounds N] [--json FILE]\n",
                 flag, value);
      return static_cast<int>(ErrorCode::usage);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tessera::comm

int main(int count, char** arguments) {
  tessera::comm::Options options;
  if (const int code = tessera::comm::parse(count, arguments, options); code != 0) return code;
  return options.backend == "local" ? tessera::comm::run_threads(options)
                                    : tessera::comm::run_processes(options);
}
