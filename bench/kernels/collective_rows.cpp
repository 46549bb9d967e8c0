// Collectives over shared memory, compared with memcpy of the same number of bytes, and the
// barrier. Ranks are processes that are forked for a row, or threads of one process (`local`). Rank
// 0 gets the command to begin a round through a pipe and answers with its times.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/parallel.h"
#include "bench/kernels/rows.h"
#include "comm/world.h"

namespace tessera::bench {
namespace {

using RankOf = std::shared_ptr<comm::Communicator>;

struct Collective {
  std::string name;  // "all_gather", "reduce_scatter", "all_reduce" or "barrier"
  std::size_t bytes = 0;
  bool threads = false;
  int ranks = 2;
};

// The time of the slowest rank in one call.
template <class Call>
double slowest_seconds(const RankOf& rank, std::size_t bytes, const Call& call) {
  const int repeats = static_cast<int>(
      std::clamp<std::size_t>((std::size_t{32} << 20) / std::max<std::size_t>(bytes, 1), 2, 500));
  call();
  rank->barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) call();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  double worst = 0;
  for (const std::string& text : rank->exchange(fmt::format("{:.17g}", took.count()))) {
    worst = std::max(worst, std::stod(text));
  }
  return worst / repeats;
}

// The memory of one rank. An all-gather begins with each rank's shard in private memory.
class CollectiveRank {
 public:
  CollectiveRank(RankOf rank, const Collective& what)
      : rank_(std::move(rank)),
        what_(what),
        share_(what.bytes / static_cast<std::size_t>(what.ranks)),
        gathered_(rank_->allocate("gathered", what.bytes, comm::Sharing::one_copy)),
        gradients_(rank_->allocate("gradients", what.bytes, comm::Sharing::per_rank)),
        private_share_(share_, std::byte{1}),
        sum_(what.bytes / sizeof(float)),
        from_(rank_->rank() == 0 ? what.bytes : 0, std::byte{2}),
        to_(from_.size()) {
    std::memset(gradients_->data(), 0, what.bytes);
  }

  Measured round() {
    if (what_.name == "barrier") return {slowest_seconds(rank_, 0, [&] { rank_->barrier(); }), 0};
    // One rank copies; the others wait, so that it has the memory bandwidth to itself.
    const double copied = slowest_seconds(rank_, what_.bytes, [&] {
      std::memcpy(to_.data(), from_.data(), from_.size());
      benchmark::DoNotOptimize(to_.data());
      benchmark::ClobberMemory();
    });
    return {slowest_seconds(rank_, what_.bytes, [&] { call(); }), copied};
  }

 private:
  void call() {
    if (what_.name == "all_gather") {
      rank_->acquire(*gathered_);
      std::memcpy(gathered_->data() + share_ * static_cast<std::size_t>(rank_->rank()),
                  private_share_.data(), share_);
      rank_->all_gather(*gathered_, gathered_->bytes(), {});
      gathered_->release();
      return;
    }
    rank_->acquire(*gradients_);
    if (what_.name == "reduce_scatter") {
      const auto count = static_cast<std::int64_t>(share_ / sizeof(float));
      rank_->reduce_scatter(*gradients_,
                            {{.first = count * rank_->rank(), .count = count, .out = sum_.data()}},
                            {}, {});
    } else {
      rank_->all_reduce(*gradients_, static_cast<std::int64_t>(sum_.size()), sum_.data(), {}, {});
    }
  }

  RankOf rank_;
  Collective what_;
  std::size_t share_;
  std::shared_ptr<comm::Buffer> gathered_, gradients_;
  std::vector<std::byte> private_share_;
  std::vector<float> sum_;
  std::vector<std::byte> from_, to_;
};

// Pins each rank to its own core if there are enough cores. Some containers refuse it: then the
// kernel decides.
void pin_rank(int rank) {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(static_cast<std::size_t>(rank % sysconf(_SC_NPROCESSORS_ONLN)), &core);
  sched_setaffinity(0, sizeof(core), &core);
}

// Runs rounds as long as rank 0 gets commands.
void serve_rounds(const RankOf& rank, const Collective& what, int asked, int answers) {
  set_compute_threads(1);
  pin_rank(rank->rank());
  CollectiveRank own(rank, what);
  for (;;) {
    char byte = 0;
    if (rank->rank() == 0 && read(asked, &byte, 1) != 1) byte = 0;
    if (rank->exchange(std::string(1, byte != 0 ? '1' : '0')).front() == "0") return;
    const Measured round = own.round();
    if (rank->rank() != 0) continue;
    TESSERA_SYSTEM(write(answers, &round, sizeof(round)));
  }
}

// The ranks of one row, as child processes of this one.
class RankProcesses {
 public:
  explicit RankProcesses(const Collective& what) {
    int asked[2] = {-1, -1}, answers[2] = {-1, -1};
    TESSERA_SYSTEM(pipe2(asked, O_CLOEXEC));
    TESSERA_SYSTEM(pipe2(answers, O_CLOEXEC));
    asked_ = asked[1];
    answers_ = answers[0];
    std::fflush(nullptr);
    const std::string run = fmt::format("kernels_bench {} {}", getpid(), asked_);
    for (int rank = 0; rank < (what.threads ? 1 : what.ranks); ++rank) {
      const pid_t child = fork();
      TESSERA_SYSTEM(child);
      if (child != 0) {
        children_.push_back(child);
        continue;
      }
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(asked_);
      close(answers_);
      _exit(run_child(what, rank, run, asked[0], answers[1]));
    }
    close(asked[0]);
    close(answers[1]);
  }
  ~RankProcesses() {
    close(asked_);  // this ends them
    close(answers_);
    for (const pid_t child : children_) waitpid(child, nullptr, 0);
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // False if a rank has ended; it has reported the reason.
  bool round(Measured& times) const {
    return write(asked_, "r", 1) == 1 && read(answers_, &times, sizeof(times)) == sizeof(times);
  }

 private:
  static int run_child(const Collective& what, int rank, const std::string& run, int asked,
                       int answers) {
    try {
      const auto serve = [&](const RankOf& own) { serve_rounds(own, what, asked, answers); };
      if (what.threads) {
        comm::run_local(what.ranks, serve);
      } else {
        serve(comm::connect({.rank = rank,
                             .size = what.ranks,
                             .local_rank = rank,
                             .local_size = what.ranks,
                             .run_id = run}));
      }
      return 0;
    } catch (const std::exception& error) {
      fmt::print(stderr, "kernels_bench: {}\n", error.what());
      return 1;
    }
  }

  int asked_ = -1, answers_ = -1;
  std::vector<pid_t> children_;
};

void measure_collective(benchmark::State& state, const Collective& what) {
  const RankProcesses ranks(what);
  Measured round;
  std::vector<Measured> rounds;
  for (auto unused : state) {
    static_cast<void>(unused);
    if (!ranks.round(round)) {
      state.SkipWithError("a rank ended");
      break;
    }
    rounds.push_back(round);
    state.SetIterationTime(round.seconds);
  }
  if (what.name != "barrier") report(state, static_cast<double>(what.bytes), rounds);
}

}  // namespace

void add_collective_rows(const WholeOptions& options) {
  for (const bool threads : {false, true}) {
    const auto add = [&](const std::string& name, std::size_t bytes, const std::string& size) {
      const Collective what{name, bytes, threads, options.ranks};
      const std::string row = fmt::format("collective/{}/{}/{}{}", name, threads ? "local" : "shm",
                                          options.ranks, size);
      benchmark::RegisterBenchmark(
          row.c_str(), [what](benchmark::State& state) { measure_collective(state, what); })
          ->Iterations(std::max(1, options.rounds / 2))
          ->UseManualTime();
    };
    add("barrier", sizeof(float) * static_cast<std::size_t>(options.ranks), "");
    for (const char* name : {"all_gather", "reduce_scatter", "all_reduce"}) {
      for (const std::size_t kib : {64, 1024, 4096, 16384, 65536}) {
        const std::size_t unit = sizeof(float) * static_cast<std::size_t>(options.ranks);
        add(name, kib * 1024 / unit * unit, fmt::format("/{}KiB", kib));
      }
    }
  }
}

}  // namespace tessera::bench
