// A run that cannot fit is refused before it takes memory; the free memory that the machine
// reports.
#include "planner/memory_check.h"

#include <sys/resource.h>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/text/byte_size.h"
#include "tests/cli/training_testing.h"
#include "tests/support/errors.h"
#include "tests/support/processor_time.h"

namespace tessera::planner {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::launched;
using testing::run_program;
using testing::Settings;
using testing::train_arguments;
using testing::TrainingFolder;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// Files of /proc and /sys below a folder.
class Machine {
 public:
  Machine() {
    write("proc/meminfo",
          "MemTotal: 9000000 kB\nMemAvailable:    4096000 kB\nSwapFree:   1024 kB\n");
    write("proc/self/status", "VmSize:\t  1024 kB\n");
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  [[nodiscard]] fs::path root() const { return folder_ / ""; }

 private:
  testing::TemporaryFolder folder_;
};

TEST(HostMemory, IsWhatTheMachineHasFreeWithItsSwap) {
  const Machine machine;
  const auto free = free_memory_of_host(machine.root());
  ASSERT_TRUE(free.has_value());
  EXPECT_EQ(free->bytes, std::uint64_t{4097024} * 1024);
  EXPECT_EQ(free->place, "this machine");
  EXPECT_EQ(free_memory_of_rank(4, 1, machine.root())->bytes, std::uint64_t{4097024} * 256);
  fs::remove(machine.root() / "proc/meminfo");
  EXPECT_FALSE(free_memory_of_host(machine.root()).has_value());
}

TEST(HostMemory, AControlGroupMayLeaveLess) {
  const Machine machine;
  machine.write("proc/self/cgroup", "0::/jobs/7\n");
  const std::string group = "sys/fs/cgroup/jobs/7/", above = "sys/fs/cgroup/jobs/";
  machine.write(group + "memory.max", "max\n");
  machine.write(group + "memory.current", "5\n");
  EXPECT_EQ(free_memory_of_host(machine.root())->place, "this machine");
  // The page cache is freed when memory is short; swap has a limit of its own.
  machine.write(group + "memory.max", std::to_string(1000 * mib));
  machine.write(group + "memory.current", std::to_string(700 * mib));
  machine.write(group + "memory.stat", "anon 5\ninactive_file 104857600\nactive_file 0\n");
  machine.write(group + "memory.swap.max", "0\n");
  const auto own = free_memory_of_host(machine.root());
  EXPECT_EQ(own->bytes, 400 * mib);
  EXPECT_EQ(own->place, "the control group /jobs/7");
  // A parent group, of which other processes use a part.
  machine.write(above + "memory.max", std::to_string(2000 * mib));
  machine.write(above + "memory.current", std::to_string(1900 * mib));
  const auto outer = free_memory_of_host(machine.root());
  EXPECT_EQ(outer->bytes, 101 * mib);  // 1 MiB of swap
  EXPECT_EQ(outer->place, "the control group /jobs");
}

TEST(HostMemory, ControlGroupsOfVersion1) {
  const Machine machine;
  machine.write("proc/self/cgroup", "3:cpu,cpuacct:/x\n5:memory:/x\n");
  const std::string group = "sys/fs/cgroup/memory/x/";
  machine.write(group + "memory.limit_in_bytes", "9223372036854771712\n");
  machine.write(group + "memory.usage_in_bytes", "5\n");
  EXPECT_EQ(free_memory_of_host(machine.root())->place, "this machine");
  machine.write(group + "memory.limit_in_bytes", std::to_string(300 * mib));
  machine.write(group + "memory.usage_in_bytes", std::to_string(100 * mib));
  EXPECT_EQ(free_memory_of_host(machine.root())->bytes, 201 * mib);
}

TEST(MemoryCheck, ForSentencesOnlyTheStateCountsBecauseBatchesMayBeShort) {
  RankMemory planned;
  planned.use[MemoryKind::parameters] = 10 * mib;
  planned.use[MemoryKind::optimizer] = 20 * mib;
  planned.use[MemoryKind::activations] = 500 * mib;
  training::Recipe recipe;
  const MemoryNeed tokens = memory_need(recipe, DeviceType::cpu, planned);
  EXPECT_EQ(tokens.bytes(), 530 * mib);
  EXPECT_FALSE(tokens.at_least);
  EXPECT_EQ(text_of(tokens.kinds), "parameters 10.0 MiB, optimizer 20.0 MiB, activations 500 MiB");
  recipe.train.task = training::TaskKind::sentence_pairs;
  const MemoryNeed sentences = memory_need(recipe, DeviceType::cpu, planned);
  EXPECT_EQ(sentences.bytes(), 30 * mib);
  EXPECT_TRUE(sentences.at_least);
  // For a rank on a GPU, the part on the host.
  planned.on_host[MemoryKind::optimizer] = 7 * mib;
  EXPECT_EQ(memory_need(recipe, DeviceType::cuda, planned).bytes(), 7 * mib);
}

TEST(MemoryCheck, MeasuredPartsMoveBetweenAllRanksOfTheWorld) {
  training::Recipe recipe;
  recipe.data.batch_size = 8;
  recipe.data.rank_weights = {.measured = true, .limit = 2};
  EXPECT_EQ(share_to_check(recipe, 0, 4, 4), 8);   // one memory has all parts
  EXPECT_EQ(share_to_check(recipe, 0, 4, 2), 15);  // one sample for each rank of the other memory
  EXPECT_EQ(share_to_check(recipe, 0, 4, 1), 16);
  recipe.data.rank_weights.limit = 1.2;
  EXPECT_EQ(share_to_check(recipe, 3, 4, 2), 9);
  recipe.data.rank_weights = {.given = {5, 1, 1, 1}};
  EXPECT_EQ(share_to_check(recipe, 0, 4, 2), 20);
  EXPECT_EQ(share_to_check(recipe, 3, 4, 2), 4);
  recipe.data.rank_weights = {};
  EXPECT_EQ(share_to_check(recipe, 3, 4, 2), 8);
}

TEST(MemoryCheck, TheMeanOfRanksHasTheMeanOfEachKind) {
  const MemoryNeed mean{mean_of({{{"parameters", 4 * mib}, {"activations", 9 * mib}},
                                 {{"parameters", 4 * mib}, {"other", mib}}})};
  EXPECT_EQ(text_of(mean.kinds), "parameters 4.00 MiB, activations 4.50 MiB, other 512 KiB");
  EXPECT_EQ(mean.bytes(), 9 * mib);
}

void expect_no_room(const Ended& ended, const std::string& message) {
  EXPECT_EQ(ended.code, 6) << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_TRUE(ended.err.starts_with("tessera: error: ")) << ended.err;
  EXPECT_NE(ended.err.find(message), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find("train.memory_check: false starts it anyway"), std::string::npos)
      << ended.err;
}

// 175 billion parameters.
TEST(MemoryCheck, ARunThatCannotFitIsRefusedBeforeItBegins) {
  const TrainingFolder folder;
  const double before = testing::children_processor_seconds();
  const Ended alone = run_program(train_arguments(
      folder.small() +
      Settings{{"model.n_layer", "96"}, {"model.n_head", "96"}, {"model.n_embd", "12288"}}));
  expect_no_room(alone, "free for it; ");
  EXPECT_NE(alone.err.find("a rank needs 2.5"), std::string::npos) << alone.err;
  EXPECT_NE(alone.err.find("(parameters "), std::string::npos) << alone.err;
  EXPECT_LT(testing::children_processor_seconds() - before, 120);
}

// A limit on the address space of programs that start meanwhile.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressSpaceLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  AddressSpaceLimit(const AddressSpaceLimit&) = delete;
  AddressSpaceLimit& operator=(const AddressSpaceLimit&) = delete;

 private:
  rlimit before_{};
};

// 834 MiB of activations and some MiB of state.
Settings wide_batch(const TrainingFolder& folder) {
  return folder.small() + Settings{{"data.batch_size", "512"},
                                   {"model.n_embd", "256"},
                                   {"train.steps", "1"},
                                   {"train.lr_decay_steps", "1"},
                                   {"train.warmup_steps", "0"}};
}

// The number in "... has 497 MiB free for ...".
double free_mib(const Ended& ended) {
  const std::string before = "(ulimit -v) has ";
  const std::size_t at = ended.err.find(before);
  return at == std::string::npos ? -1 : std::stod(ended.err.substr(at + before.size()));
}

TEST(MemoryCheck, AllRanksOfAHostCount) {
  const TrainingFolder folder;
  const auto arguments = train_arguments(wide_batch(folder));
  const AddressSpaceLimit limit(rlim_t{800} * mib);
  const Ended processes = run_program(launched(2, arguments));
  expect_no_room(processes, "free for each of 2 ranks; ");
  // Threads share one address space: half of it for each.
  std::vector<std::string> threads = {"launch", "--threads", "2", "--", testing::program_path()};
  threads.insert(threads.end(), arguments.begin(), arguments.end());
  const Ended shared = run_program(threads);
  expect_no_room(shared, "free for each of 2 ranks; ");
  EXPECT_GT(free_mib(shared), 0);
  EXPECT_LT(free_mib(shared), 0.6 * free_mib(processes));
}

// Each process has a limit of its own, so that what the other rank does not need is of no use. One
// rank has 808 MiB of activations, and half of them would fit.
TEST(MemoryCheck, UnequalRanksAreJudgedOneByOneWhereEachHasItsOwnLimit) {
  const TrainingFolder folder;
  const Settings settings = wide_batch(folder) + Settings{{"data.batch_size", "256"}};
  const AddressSpaceLimit limit(rlim_t{1000} * mib);
  const auto ended = [&](const std::string& weights) {
    return run_program(
        launched(2, train_arguments(settings + Settings{{"data.rank_weights", weights}})));
  };
  const Ended refused = ended("[1, 31]");
  expect_no_room(refused, "; or give it a smaller part in data.rank_weights; ");
  EXPECT_NE(refused.err.find("a rank needs 8"), std::string::npos) << refused.err;
  EXPECT_EQ(ended("[1, 1]").err.find("a rank needs"), std::string::npos);
  const Ended measured = ended("auto");
  expect_no_room(measured, "; or lower data.rank_weights_limit; ");
}

// The program itself takes up to 85 MiB of the addresses, by the number of GPUs that it has kernels
// for.
TEST(MemoryCheck, TheSuggestedChangesMakeItFit) {
  const TrainingFolder folder;
  const Settings wide = wide_batch(folder);
  const AddressSpaceLimit limit(rlim_t{850} * mib);
  const Ended refused = run_program(train_arguments(wide));
  expect_no_room(refused, "the limit on this process's address space (ulimit -v) has ");
  const std::string way = "--set data.batch_size=";
  const std::size_t at = refused.err.find(way);
  ASSERT_NE(at, std::string::npos) << refused.err;
  const std::string batch = std::to_string(std::stoi(refused.err.substr(at + way.size())));
  const Ended smaller =
      run_program(train_arguments(wide + Settings{{"data.batch_size", batch},
                                                  {"train.gradient_accumulation_steps",
                                                   std::to_string(512 / std::stoi(batch))}}));
  EXPECT_EQ(smaller.code, 0) << smaller.err;
  // Users may override the check; the allocation that fails then reports it.
  const Ended anyway =
      run_program(train_arguments(wide + Settings{{"train.memory_check", "false"}}));
  EXPECT_EQ(anyway.code, 6) << anyway.err;
  EXPECT_NE(anyway.err.find("out of memory"), std::string::npos) << anyway.err;
}

TEST(MemorySizes, WithoutAUnitASmallNumberIsQuestioned) {
  EXPECT_EQ(read_memory_size("--device-memory", "80GB"), 80'000'000'000U);
  EXPECT_EQ(read_memory_size("--device-memory", "80B"), 80U);
  EXPECT_EQ(read_memory_size("--device-memory", "1e11"), 100'000'000'000U);
  EXPECT_EQ(
      testing::error_of([] { return read_memory_size("--device-memory", "80"); }, ErrorCode::usage),
      "--device-memory 80: the unit is missing, as in 80GB or 80GiB; 80 bytes are 80B");
}

}  // namespace
}  // namespace tessera::planner
