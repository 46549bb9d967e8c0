// `tessera test`: checks an installation by running it: collectives, every strategy, ranks as
// threads, a save and a resume, and a GPU if there is one. With --hosts see hosts.h.
#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text/print.h"
#include "base/write_failure.h"
#include "checkpoint/io/removal.h"
#include "cli/commands/test/hosts.h"
#include "cli/subcommands.h"
#include "engine/device/backend.h"
#include "engine/storage/output_file.h"
#include "launch/launch.h"
#include "sharding/context/context.h"
#include "sharding/policy/strategy.h"
#include "training/rank_threads.h"
#include "training/recipe/accelerate/config.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

// ---- the work of a rank in the first check

void expect(bool holds, const Context& context, std::string_view what) {
  TESSERA_CHECK(holds, ErrorCode::runtime, "rank {}: {} gave another sum than expected",
                context.rank(), what);
}

// Shards with different contents, all-gathered, and their sums, reduce-scattered and all-reduced.
void check_collectives(const Context& context) {
  constexpr std::int64_t share = 1024;
  const int ranks = context.world_size();
  const std::int64_t count = share * ranks;
  comm::Communicator& communicator = context.communicator();
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  const auto value = [&](int rank, std::int64_t i) { return static_cast<float>(rank * count + i); };

  const auto gathered = communicator.allocate("test.gather", bytes, comm::Sharing::one_copy);
  communicator.acquire(*gathered);
  auto* values = reinterpret_cast<float*>(gathered->data());
  for (std::int64_t i = 0; i < share; ++i) {
    values[context.rank() * share + i] = value(context.rank(), i);
  }
  communicator.all_gather(*gathered, bytes, {});
  for (std::int64_t i = 0; i < count; ++i) {
    expect(values[i] == value(static_cast<int>(i / share), i % share), context, "all_gather");
  }
  gathered->release();

  const auto summed = communicator.allocate("test.reduce", bytes, comm::Sharing::per_rank);
  const auto expected = [&](std::int64_t i) {  // exact: small whole numbers
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += value(rank, i);
    return sum;
  };
  const auto write = [&] {
    communicator.acquire(*summed);
    auto* own = reinterpret_cast<float*>(summed->data());
    for (std::int64_t i = 0; i < count; ++i) own[i] = value(context.rank(), i);
  };
  std::vector<float> out(static_cast<std::size_t>(count));
  write();
  communicator.reduce_scatter(*summed, {{context.rank() * share, share, out.data()}}, {}, {});
  for (std::int64_t i = 0; i < share; ++i) {
    expect(out[static_cast<std::size_t>(i)] == expected(context.rank() * share + i), context,
           "reduce_scatter");
  }
  write();
  communicator.all_reduce(*summed, count, out.data(), {}, {});
  for (std::int64_t i = 0; i < count; ++i) {
    expect(out[static_cast<std::size_t>(i)] == expected(i), context, "all_reduce");
  }
  expect(context.sum(context.rank() + 1) == ranks * (ranks + 1) / 2.0, context, "sum");
  context.barrier();
}

// ---- the checks

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "tessera-test-XXXXXX").string();
    TESSERA_CHECK(::mkdtemp(pattern.data()) != nullptr,
                  full_disk_or(errno, ErrorCode::configuration),
                  "{} cannot be created: {}; set TMPDIR to a writable folder", pattern,
                  describe_errno("mkdtemp", errno));
    path_ = pattern;
  }
  ~Folder() {
    if (!kept_) checkpoint::try_remove_tree(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }

  // The folder stays, so that the user can look for the cause of an error.
  const Folder& keep() const {
    kept_ = true;
    return *this;
  }

 private:
  fs::path path_;
  mutable bool kept_ = false;
};

// For each step: its number, the loss and the gradient norm, with every digit.
std::vector<std::string> steps_in(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line.substr(0, line.find(", \"lr\"")));
  }
  return lines;
}

class Installation {
 public:
  explicit Installation(int ranks) : ranks_(ranks), program_(fs::read_symlink("/proc/self/exe")) {
    ::unsetenv(training::config_file_variable);
    ::unsetenv(training::rank_threads_variable);
    write("text", text());
    write("recipe.yaml",
          "model: {architecture: gpt2, n_layer: 2, n_head: 2, n_embd: 32, seq_len: 32}\n"
          "train: {steps: 4, warmup_steps: 1, lr: 1.0e-3}\n");
  }

  void ranks_meet() const { start({"test", "--rank"}, ranks_, false); }

  // All strategies at one world size give the same bits; the losses of the first are kept.
  void strategies_agree() {
    for (const StrategyRow& row : strategy_table) {
      const std::string name(row.name);
      std::vector<std::string> settings = {"sharding.sharding_strategy=" + name};
      const bool halves = row.shards == ShardGroup::group && ranks_ % 2 == 0;
      if (halves) settings.push_back(fmt::format("sharding.group_size={}", ranks_ / 2));
      const auto steps = train(name, settings, ranks_, false);
      if (expected_.empty()) expected_ = steps;
      TESSERA_CHECK(steps == expected_ && steps.size() == 4, ErrorCode::runtime,
                    "{} has other losses than {}", name, strategy_table[0].name);
    }
  }

  void threads_agree() const {
    TESSERA_CHECK(train("threads", {}, ranks_, true) == expected_, ErrorCode::runtime,
                  "ranks that are threads have other losses than processes");
  }

  void resume_agrees() const {
    const std::string saves = "checkpoint.dir=" + (folder_ / "saved");
    const std::string log = "resumed";
    const std::vector<std::string> half = {saves, "train.steps=2", "train.lr_decay_steps=4"};
    (void)train(log, half, ranks_, false);
    const auto steps = train(log, {saves}, ranks_, false);
    TESSERA_CHECK(steps == expected_, ErrorCode::runtime,
                  "a run that was saved and resumed has other losses than one that was not");
  }

  // One rank each; their losses agree within the rounding of two kinds of arithmetic.
  void gpu_agrees() const {
    const auto on = [&](const std::string& device) {
      return train(device, {"train.device=" + device}, 1, false);
    };
    const auto cpu = on("cpu");
    const auto gpu = on("cuda");
    TESSERA_CHECK(cpu.size() == gpu.size(), ErrorCode::runtime, "{} steps on the CPU, {} on a GPU",
                  cpu.size(), gpu.size());
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      TESSERA_CHECK(std::abs(loss_of(cpu[i]) - loss_of(gpu[i])) < 1e-2, ErrorCode::runtime,
                    "the GPU has another loss than the CPU: {} and {}", gpu[i], cpu[i]);
    }
  }

 private:
  void write(const std::string& name, const std::string& content) const {
    write_output("TMPDIR: " + folder_ / name, folder_ / name, content);
  }

  static std::string text() {
    static const char* const words[] = {"shard ", "gather ", "reduce ", "rank\n"};
    std::string text;
    std::uint64_t state = 1;
    while (text.size() < 8192) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      text += words[state >> 62];
    }
    return text;
  }

  static double loss_of(const std::string& line) {
    const std::string_view name = "\"loss\": ";
    return std::strtod(line.c_str() + line.find(name) + name.size(), nullptr);
  }

  std::vector<std::string> train(const std::string& name, const std::vector<std::string>& settings,
                                 int ranks, bool threads) const {
    std::vector<std::string> words = {"train", folder_ / "recipe.yaml"};
    std::vector<std::string> all = {"data.train=" + (folder_ / "text"), "data.batch_size=2",
                                    "log.jsonl=" + (folder_ / (name + ".jsonl"))};
    const bool named_device = name == "cpu" || name == "cuda";
    if (!named_device) all.emplace_back("train.device=cpu");
    all.insert(all.end(), settings.begin(), settings.end());
    for (const std::string& setting : all) words.insert(words.end(), {"--set", setting});
    start(words, ranks, threads);
    return steps_in(folder_ / (name + ".jsonl"));
  }

  void start(std::vector<std::string> words, int ranks, bool threads) const {
    words.insert(words.begin(), program_.string());
    launcher::LaunchOptions options;
    options.command = std::move(words);
    options.ranks = threads ? 1 : ranks;
    if (threads) {
      options.threads = ranks;
      options.variables[training::rank_threads_variable] = std::to_string(ranks);
    }
    options.output.folder = folder_ / "log";
    const int code = launcher::launch(options);
    constexpr int out_of_room = static_cast<int>(ErrorCode::checkpoint);
    TESSERA_CHECK(code != out_of_room, ErrorCode::checkpoint,
                  "ended with code {}: TMPDIR {} has no room; name another folder", code,
                  fs::temp_directory_path().string());
    TESSERA_CHECK(code == 0, ErrorCode::runtime, "ended with code {}; the output of the ranks: {}",
                  code, folder_.keep() / "log");
  }

  int ranks_;
  fs::path program_;
  Folder folder_;
  std::vector<std::string> expected_;
};

struct TestCommand {
  int ranks = 2;
  bool rank = false, hosts = false;
  std::string cluster;

  [[nodiscard]] int run() const {
    TESSERA_CHECK(cluster.empty() || hosts, ErrorCode::usage, "--cluster goes with --hosts");
    if (hosts) return test_hosts(cluster);
    if (rank) {
      check_collectives(init());
      return 0;
    }
    Installation installation(ranks);
    int code = 0;
    const auto check = [&](const std::string& what, const std::function<void()>& proof) {
      if (code == 0) code = prove(what, proof);
    };
    check(fmt::format("{} ranks meet; all_gather, reduce_scatter, all_reduce and sum are right",
                      ranks),
          [&] { installation.ranks_meet(); });
    check("every strategy trains with the same bits", [&] { installation.strategies_agree(); });
    check("ranks that are threads have the bits of processes",
          [&] { installation.threads_agree(); });
    check("a run that is saved and resumed has the bits of one that is not",
          [&] { installation.resume_agrees(); });
    const Backend& gpus = backend_of(DeviceType::cuda);
    if (gpus.device_count() > 0) {
      check("a GPU trains as the CPU does", [&] { installation.gpu_agrees(); });
    } else {
      print_out("  --    no GPU: {}\n", gpus.unavailable_reason());
    }
    print_out("{}\n", code == 0 ? "this installation works" : "this installation does not work");
    return code;
  }

  // Returns 0 or the code of the error: a full disk is not a fault of the installation.
  static int prove(const std::string& what, const std::function<void()>& proof) {
    const auto begin = std::chrono::steady_clock::now();
    std::string wrong;
    int code = 0;
    try {
      proof();
    } catch (const Error& error) {
      wrong = error.what();
      const bool no_room = error.code() == ErrorCode::checkpoint;
      code = static_cast<int>(no_room ? error.code() : ErrorCode::runtime);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    print_out("  {:<5} {} ({:.1f} s){}\n", wrong.empty() ? "ok" : "FAILS", what, took.count(),
              wrong.empty() ? "" : ": " + wrong);
    std::fflush(stdout);
    return code;
  }
};

}  // namespace

Command describe_test() {
  const auto options = std::make_shared<TestCommand>();
  return {
      .arguments =
          {{.name = "--ranks",
            .target = &options->ranks,
            .help = "Ranks to start",
            .shows_default = true,
            .least = 2,
            .most = 64},
           {.name = "--rank",
            .target = &options->rank,
            .help =
                "Run one rank of the first check; for programs that start ranks in another way"},
           {.name = "--hosts",
            .target = &options->hosts,
            .help = "As a rank of a job over several nodes: measure latency and rate between each "
                    "pair of nodes, and name slow ones"},
           {.name = "--cluster",
            .target = &options->cluster,
            .help = "With --hosts: compare with this cluster's `across` (a file or a name, as for "
                    "tessera plan) and not with the median of all pairs",
            .type = "NAME|FILE"}},
      .run = [options](const std::vector<std::string>&) { return options->run(); }};
}

}  // namespace tessera::cli
