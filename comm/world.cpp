// Reads the world from the environment.
#include "comm/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "comm/timeout.h"

namespace tessera::comm {
namespace {

std::optional<std::string_view> variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

int number(const char* name, std::string_view text, int lowest, int highest) {
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  TESSERA_CHECK(status != std::errc::invalid_argument && end == text.data() + text.size(),
                ErrorCode::configuration, "environment variable {}='{}' is not a whole number",
                name, text);
  TESSERA_CHECK(status == std::errc{} && value >= lowest && value <= highest,
                ErrorCode::configuration,
                "environment variable {}={} is out of range: it has to be from {} to {}", name,
                text, lowest, highest);
  return value;
}

// The variables of one launcher.
struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* node_rank;
  const char* nodes;
};
constexpr std::array<Names, 4> launchers{{
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "", ""},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", ""},  // MPICH's mpirun
    {"SLURM_PROCID", "SLURM_NTASKS", "", "", "", ""},  // the rest: read_slurm()
}};
constexpr const Names* mpich = &launchers[2];
constexpr const Names* slurm = &launchers[3];

// SLURM_NTASKS alone is set in a batch script that runs no tasks yet; only the rank's variable
// shows a task.
const Names* launcher_in_environment() {
  const Names& torchrun = launchers[0];
  if (variable(torchrun.rank) || variable(torchrun.size)) return &torchrun;
  for (const Names& names : launchers) {
    // Slurm sets PMI_RANK as well, but not the rest.
    if (&names == mpich && !variable(names.local_rank)) continue;
    if (variable(names.rank)) return &names;
  }
  return nullptr;
}

void read_ranks(const Names& names, World& world) {
  const auto rank = variable(names.rank);
  const auto size = variable(names.size);
  TESSERA_CHECK(rank && size, ErrorCode::configuration,
                "environment variable {} is set, but {} is not; set both (`tessera launch` and "
                "torchrun do), or "
                "neither to run one rank",
                rank ? names.rank : names.size, rank ? names.size : names.rank);
  world.size = number(names.size, *size, 1, std::numeric_limits<int>::max());
  world.rank = number(names.rank, *rank, 0, world.size - 1);
  // Without the local pair all ranks are on this node.
  world.local_rank = world.rank;
  world.local_size = world.size;
  if (const auto local_size = variable(names.local_size)) {
    world.local_size = number(names.local_size, *local_size, 1, world.size);
    world.local_rank = world.rank % world.local_size;
  }
  if (const auto local_rank = variable(names.local_rank)) {
    world.local_rank = number(names.local_rank, *local_rank, 0, world.local_size - 1);
  }
}

// Called after read_ranks(): not every launcher sets these variables.
void read_nodes(const Names& names, World& world) {
  world.nodes = (world.size + world.local_size - 1) / world.local_size;
  if (const auto nodes = variable(names.nodes)) {
    world.nodes = number(names.nodes, *nodes, 1, world.size);
  }
  world.node_rank = std::min(world.rank / world.local_size, world.nodes - 1);
  world.node_is_known = world.nodes == 1;
  if (const auto node = variable(names.node_rank)) {
    world.node_is_known = true;
    // Nodes may have different numbers of ranks: without the number of nodes there may be more.
    const int most = variable(names.nodes) ? world.nodes : world.size;
    world.node_rank = number(names.node_rank, *node, 0, most - 1);
    world.nodes = std::max(world.nodes, world.node_rank + 1);
  }
}

// The number of Slurm's tasks of one node, from a list such as "2(x3),1".
int tasks_of_node(const char* name, std::string_view text, int node) {
  const auto wrong = [&] {
    fail(ErrorCode::configuration,
         "environment variable {}='{}' does not name the tasks of node {}: it must be a list "
         "like 2(x3),1 with an entry for each node",
         name, text, node);
  };
  std::string_view rest = text;
  int before = node;  // nodes that come first
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::size_t bracket = item.find("(x");
    const int tasks = number(name, item.substr(0, bracket), 1, std::numeric_limits<int>::max());
    int times = 1;
    if (bracket != std::string_view::npos) {
      if (item.back() != ')') wrong();
      times = number(name, item.substr(bracket + 2, item.size() - bracket - 3), 1,
                     std::numeric_limits<int>::max());
    }
    if (before < times) return tasks;
    before -= times;
  }
  wrong();
  return 1;
}

// The first host of Slurm's list: "node[03-04,7],other" begins with node03.
std::string first_host(std::string_view list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    const std::size_t close = list.find(']', i);
    if (list[i] == '[' && close != std::string_view::npos) {
      host += list.substr(i + 1, list.find_first_of(",-]", i) - i - 1);
      i = close;
    } else {
      host += list[i];
    }
  }
  return host;
}

// The first of these variables that is set.
struct Setting {
  const char* name;
  std::string_view text;
};
std::optional<Setting> first_of(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const auto text = variable(name)) return Setting{name, *text};
  }
  return std::nullopt;
}

// The step's nodes have priority over the job's, which may be more. Nodes may have different
// numbers of tasks.
void read_slurm(World& world) {
  const int most = std::numeric_limits<int>::max();
  if (const auto nodes = first_of({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"})) {
    world.nodes = std::min(number(nodes->name, nodes->text, 1, most), world.size);
  }
  world.node_is_known = world.nodes == 1;
  if (const auto node = first_of({"SLURM_NODEID"})) {
    world.node_is_known = true;
    world.node_rank = number(node->name, node->text, 0, most);
  }
  if (const auto tasks = first_of({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"})) {
    const int here = tasks_of_node(tasks->name, tasks->text, world.node_rank);
    world.local_size = std::min(here, world.size);
    world.local_rank = world.rank % world.local_size;
  } else {
    world.local_size = (world.size + world.nodes - 1) / world.nodes;
  }
  if (const auto local = first_of({"SLURM_LOCALID"})) {
    world.local_rank = number(local->name, local->text, 0, world.local_size - 1);
  }
  if (world.nodes == 1) return;
  const auto list = first_of({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (list) world.master_address = first_host(list->text);
}

// Distinguishes two jobs on one node, and two steps of one job.
std::string run_in_environment() {
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TESSERA_RUN_ID", "SLURM_JOB_ID"}) {
    const auto run = variable(name);
    if (!run) continue;
    const auto step = variable("SLURM_STEP_ID");
    return std::string_view(name) == "SLURM_JOB_ID" && step ? fmt::format("{}.{}", *run, *step)
                                                            : std::string(*run);
  }
  return std::string(variable("PMIX_NAMESPACE").value_or(""));  // mpirun's
}

}  // namespace

World world_from_environment() {
  World world;
  if (const Names* names = launcher_in_environment()) {
    read_ranks(*names, world);
    if (names == slurm) {
      read_slurm(world);
    } else {
      read_nodes(*names, world);
    }
  }
  if (const auto address = variable("MASTER_ADDR")) world.master_address = *address;
  if (const auto port = variable("MASTER_PORT")) {
    world.master_port = number("MASTER_PORT", *port, 1, 65535);
  }
  world.run_id = run_in_environment();
  return world;
}

namespace {

std::chrono::milliseconds seconds_of(const char* name, std::chrono::milliseconds of_options,
                                     int otherwise) {
  if (of_options.count() > 0) return of_options;
  const auto text = variable(name);
  return std::chrono::seconds(text ? number(name, *text, 1, 1'000'000) : otherwise);
}

}  // namespace

std::chrono::milliseconds collective_timeout(const ConnectOptions& options) {
  return seconds_of("TESSERA_COMM_TIMEOUT", options.collective_timeout, 300);
}

std::chrono::milliseconds standstill_timeout(const ConnectOptions& options) {
  return seconds_of("TESSERA_STANDSTILL_TIMEOUT", options.standstill_timeout, 5);
}

}  // namespace tessera::comm
