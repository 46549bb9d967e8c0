// The world as the environment describes it.
#include "sharding/comm/world.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

#include "kernels/base/error.h"
#include "sharding/comm/timeout.h"

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
};
constexpr std::array<Names, 3> launchers{{
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
}};

// SLURM_NTASKS alone is set in a batch script that runs no tasks yet; there only the rank tells.
const Names* launcher_in_environment() {
  const Names& torchrun = launchers[0];
  if (variable(torchrun.rank) || variable(torchrun.size)) return &torchrun;
  for (const Names& names : launchers) {
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
  // Without the local pair all ranks are on this host.
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

}  // namespace

World world_from_environment() {
  World world;
  if (const Names* names = launcher_in_environment()) read_ranks(*names, world);
  if (const auto address = variable("MASTER_ADDR")) world.master_address = *address;
  if (const auto port = variable("MASTER_PORT")) {
    world.master_port = number("MASTER_PORT", *port, 1, 65535);
  }
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TESSERA_RUN_ID", "SLURM_JOB_ID"}) {
    const auto run = variable(name);
    if (run && world.run_id.empty()) world.run_id = *run;
  }
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
