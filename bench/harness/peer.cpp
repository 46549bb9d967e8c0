// Peers: their table, and the call of a script with a job and an answer as JSON files.
#include "bench/harness/peer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text/nearest.h"
#include "bench/harness/file.h"
#include "checkpoint/io/removal.h"
#include "engine/storage/output_file.h"

namespace tessera::bench {
namespace {

namespace fs = std::filesystem;

struct KnownPeer {
  std::string_view name;
  std::string_view module;  // a Python module that the script needs
  std::vector<std::pair<std::string_view, std::string_view>> modes;  // our strategy, the peer's
};

const std::vector<KnownPeer>& known_peers() {
  static const std::vector<KnownPeer> peers = {
      {"pytorch",
       "torch",
       {{"none", "none"},
        {"dp", "dp"},
        {"NO_SHARD", "ddp"},
        {"SHARD_GRAD_OP", "fsdp1-grad-op"},
        {"SHARD_GRAD_OP", "fsdp2-keep"},
        {"FULL_SHARD", "fsdp1"},
        {"FULL_SHARD", "fsdp2"}}},
      {"sentence-transformers",
       "sentence_transformers",
       {{"none", "none"}, {"dp", "dp"}, {"NO_SHARD", "ddp"}, {"FULL_SHARD", "fsdp2"}}},
      {"deepspeed",
       "deepspeed",
       {{"NO_SHARD", "zero0"},
        {"SHARD_OPTIMIZER", "zero1"},
        {"SHARD_GRAD_OP", "zero2"},
        {"FULL_SHARD", "zero3"}}},
  };
  return peers;
}

const KnownPeer& known_peer(const std::string& name) {
  std::vector<std::string> names;
  for (const KnownPeer& peer : known_peers()) {
    if (peer.name == name) return peer;
    names.emplace_back(peer.name);
  }
  fail(ErrorCode::usage, "--peer {}: there are {}{}", name, fmt::join(names, ", "),
       did_you_mean(name, names));
}

// A module's name has no hyphen, and neither has a script that others import.
fs::path script_of(const fs::path& folder, const std::string& peer) {
  std::string name = peer;
  std::replace(name.begin(), name.end(), '-', '_');
  return folder / (name + ".py");
}

nlohmann::ordered_json job_of(const BenchRow& row, const PeerJob& given) {
  nlohmann::json recipe = training::to_json(row.recipe);
  nlohmann::json& decay = recipe["train"]["lr_decay_steps"];
  if (decay.is_null()) decay = row.recipe.train.steps;
  nlohmann::json& sets = recipe["data"]["train"];  // a recipe writes a single one without a list
  if (sets.is_object()) sets = nlohmann::json::array({sets});
  nlohmann::ordered_json job = {{"format", "tessera-bench-job"}, {"version", 1}};
  for (const char* section : {"model", "data", "train", "sharding"}) job[section] = recipe[section];
  job["strategy"] = row.strategy;
  job["world_size"] = row.world_size;
  job["threads_per_rank"] = given.threads_per_rank;
  job["device"] = bench_world(row).device == DeviceType::cuda ? "cuda" : "cpu";
  job["precision"] = row.precision;
  job["mode"] = row.peer->mode;
  job["backend"] = row.peer->backend;
  job["compile"] = row.peer->compile;
  job["steps"] = given.steps;
  job["warmup"] = given.warmup;
  job["rounds"] = 1;
  job["program"] = given.program.string();
  job["weights"] = given.weights.string();
  job["time_limit_s"] = std::max(1.0, given.seconds - 5);  // it ends its ranks itself
  return job;
}

RowRound failed_round(RowState state, const std::string& reason, int code) {
  RowRound round;
  round.state = state;
  round.reason = reason;
  round.exit_code = code != 0 ? code : static_cast<int>(ErrorCode::runtime);
  return round;
}

// The row that the script wrote, or the reason why there is none.
RowRound read_answer(const fs::path& file, const ProgramEnd& end, double limit) {
  const RowResult row = read_peer_row(file);
  if (end.timed_out || row.state == RowState::timed_out) {
    return failed_round(RowState::timed_out,
                        fmt::format("did not end within {:.0f} s and was killed", limit),
                        static_cast<int>(ErrorCode::rank_failed));
  }
  if (end.code != 0 || row.state != RowState::measured) {
    const std::string said =
        end.error.empty() ? fmt::format("ended with code {} and no row", end.code) : end.error;
    const RowState why = row.state == RowState::refused ? row.state : RowState::failed;
    return failed_round(why, row.reason.empty() ? said : row.reason, end.code);
  }
  const Spread& rate = row.samples_per_s;
  RowRound round;
  round.seconds = end.seconds;
  round.samples_per_s = rate.median;
  round.tokens_per_s = row.tokens_per_s.median;
  round.step_s = row.step_s.median;
  if (round.samples_per_s <= 0 || round.step_s <= 0) {
    return failed_round(RowState::failed, "its answer has no samples/s or no time of a step", 0);
  }
  round.low = rate.low > 0 ? rate.low : rate.median;
  round.high = rate.high > 0 ? rate.high : rate.median;
  round.losses = row.losses;
  // Such a process only reports the total of its memory.
  round.memory.resident = row.memory.resident ? row.memory.resident : row.memory.measured;
  round.peer = row.peer;
  return round;
}

}  // namespace

void check_peers(const std::vector<std::string>& names) {
  for (const std::string& name : names) (void)known_peer(name);
}

fs::path peer_scripts(const PeerOptions& options, const std::vector<std::string>& names) {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  std::vector<fs::path> places;
  if (!options.scripts.empty()) {
    places = {options.scripts};
  } else {
    places = {program / ".." / "bench" / "peers",  // build/ in the source tree
              program / ".." / "share" / "tessera" / "peers"};
  }
  for (const fs::path& place : places) {
    if (!fs::is_directory(place, ignored)) continue;
    for (const std::string& name : names) {
      TESSERA_CHECK(fs::exists(script_of(place, name), ignored), ErrorCode::configuration,
                    "--peer {}: {} does not exist; name the folder that has it with --peer-scripts",
                    name, script_of(place, name).lexically_normal().string());
    }
    return fs::absolute(place, ignored).lexically_normal();
  }
  fail(ErrorCode::configuration,
       "--peer {}: the folder {} does not exist; name the one with the "
       "peers' scripts with --peer-scripts",
       fmt::join(names, ","), places.front().lexically_normal().string());
}

std::vector<std::string> peer_modes(const std::string& peer, const BenchRow& own,
                                    const std::vector<std::string>& wanted) {
  std::vector<std::string> modes;
  const bool threads = own.strategy == "dp";
  if (threads && wanted.empty() && bench_world(own).device == DeviceType::cpu) return modes;
  for (const auto& [ours, mode] : known_peer(peer).modes) {
    const bool asked =
        wanted.empty() || std::find(wanted.begin(), wanted.end(), mode) != wanted.end();
    if (ours == own.strategy && asked) modes.emplace_back(mode);
  }
  return modes;
}

std::vector<std::string> all_peer_modes(const std::vector<std::string>& names) {
  std::vector<std::string> modes;
  for (const std::string& name : names) {
    for (const auto& [ours, mode] : known_peer(name).modes) modes.emplace_back(mode);
  }
  return modes;
}

std::string peer_backend(const BenchRow& own) {
  return bench_world(own).device == DeviceType::cuda ? "nccl" : "gloo";
}

std::string peer_launcher(const BenchPeer& peer, int world_size) {
  const bool processes = peer.mode != "none" && peer.mode != "dp";
  return processes ? fmt::format("{}, {} processes", peer.name, world_size) : peer.name;
}

std::string peer_unavailable(const PeerOptions& options, const std::string& peer,
                             BenchProcesses& processes) {
  const std::string module(known_peer(peer).module);
  constexpr double patience = 120;  // a first import reads hundreds of megabytes
  const ProgramEnd end = processes.run({options.python, "-c", "import " + module}, {}, patience);
  if (end.code == 0 && !end.timed_out) return {};
  if (end.timed_out) return fmt::format("{}: import {} takes too long", options.python, module);
  const std::string why = end.error.empty() ? fmt::format("it ended with {}", end.code) : end.error;
  return fmt::format("{} cannot import {} ({}); name a Python that can with --peer-python",
                     options.python, module, why);
}

RowRound run_peer(const PeerOptions& options, const BenchRow& row, const PeerJob& job,
                  BenchProcesses& processes) {
  const fs::path question = job.folder / "job.json", answer = job.folder / "answer.json";
  checkpoint::remove_tree(answer);
  write_output(question.string(), question, json_text(job_of(row, job), 2) + "\n");
  const std::string script = script_of(options.scripts, row.peer->name).string();
  const ProgramEnd end = processes.run(
      {options.python, "-B", script, "--job", question.string(), "--json", answer.string()},
      {{"OMP_NUM_THREADS", std::to_string(job.threads_per_rank)}}, job.seconds, SIGINT);
  return read_answer(answer, end, job.seconds);
}

std::string losses_differ(const std::vector<double>& own, const std::vector<double>& peer,
                          const std::string& precision) {
  if (own.empty() || peer.empty()) {
    return "one side reports no losses, so the two trainings cannot be compared";
  }
  const double tolerance = precision == "fp32" ? 2e-3 : 2e-2;
  for (std::size_t i = 0; i < std::min(own.size(), peer.size()); ++i) {
    const double a = own[i], b = peer[i];
    if (std::isnan(a) || std::isnan(b)) return "a loss is not a number";
    if (std::abs(a - b) > tolerance * std::max(std::abs(a), 1e-3)) {
      return fmt::format(
          "its loss of step {} is {:.5g} and Tessera's {:.5g}: not the same training (dropout "
          "draws "
          "other numbers in each: --set model.dropout=0)",
          i + 1, b, a);
    }
  }
  return {};
}

}  // namespace tessera::bench
