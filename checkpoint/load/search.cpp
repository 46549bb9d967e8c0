// find_latest, load_latest, start_line: find the step of a folder that training continues from.
#include <fmt/format.h>
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/io/collective.h"
#include "checkpoint/io/failure.h"
#include "checkpoint/load_pieces.h"
#include "checkpoint/steps/commit.h"
#include "checkpoint/steps/lineage.h"
#include "checkpoint/steps/manifest.h"
#include "checkpoint/steps/source.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Limits the message of rank 0 to the other ranks.
constexpr std::size_t most_candidates = 256;

json step_to_json(const CommittedStep& step) {
  return {{"name", step.path.filename().string()},
          {"step", step.step},
          {"run", step.lineage.run},
          {"save_id", step.save_id},
          {"commit", step.lineage.commit}};
}

std::string described(const UnreadableStep& step) {
  return fmt::format("{}: {}", step.path.filename().string(), step.reason);
}

// The step that determines the run to search.
const CommittedStep* newest(const StepListing& listing, const CheckpointQuery& search) {
  const auto it =
      std::find_if(listing.steps.begin(), listing.steps.end(), [&](const CommittedStep& step) {
        return search.launch.empty() || step.lineage.launch == search.launch;
      });
  return it == listing.steps.end() ? nullptr : &*it;
}

// The contents of DIR as rank 0 sees it; ranks on other hosts may see them a moment later.
std::string list_candidates(const fs::path& dir, const CheckpointQuery& search) {
  json out{{"steps", json::array()},
           {"skipped", json::array()},
           {"leftovers", json::array()},
           {"others", json::array()}};
  if (!path_exists(dir)) return out.dump();
  for (std::string& trouble : recover_for_reading(dir)) out["skipped"].push_back(trouble);
  const StepListing listing = list_committed(dir);
  const CommittedStep* first = newest(listing, search);
  if (first == nullptr && !search.launch.empty()) return out.dump();
  for (const UnreadableStep& step : listing.unreadable) {
    const bool matters = first == nullptr || step.has_manifest || step.step > first->step;
    if (matters) out["skipped"].push_back(described(step));
  }
  if (first == nullptr) return out.dump();
  const std::vector<CommittedStep> line = line_of(listing, first->lineage.run);
  for (std::size_t i = 0; i < std::min(line.size(), most_candidates); ++i) {
    out["steps"].push_back(step_to_json(line[i]));
  }
  out["others"] = describe_other_lines(listing, first->lineage.run);
  for (const std::string& name : listing.leftovers) {
    if (name.find(".partial-") != std::string::npos) out["leftovers"].push_back(name);
  }
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

// The reason of the first rank that cannot use a step; empty: none.
std::string first_problem(const std::vector<std::string>& of_ranks) {
  const auto found = [](const std::string& problem) { return !problem.empty(); };
  const auto first = std::find_if(of_ranks.begin(), of_ranks.end(), found);
  if (first == of_ranks.end()) return {};
  const auto others = std::count_if(first + 1, of_ranks.end(), found);
  return fmt::format(
      "rank {}: {}{}", first - of_ranks.begin(), *first,
      others == 0 ? std::string() : fmt::format(" (and {} failed)", counted(others, "more rank")));
}

// Returns damage. Throws any other failure, with the reason why no older step is taken instead.
std::string damage_of(const std::string& named_by, const std::function<void()>& work) {
  try {
    work();
  } catch (const SystemFailure& failure) {
    fail(ErrorCode::checkpoint,
         "{}; the step may be intact, so no older step is taken instead: try again when it can be "
         "read, or name a step with {}",
         failure.what(), named_by);
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    return error.what();
  }
  return {};
}

std::optional<FoundCheckpoint> find_usable_step(
    comm::Communicator& communicator, const std::string& dir, const CheckpointQuery& search,
    const std::function<void()>& prepare, const std::function<void(const std::string& path)>& use) {
  const std::string doing = fmt::format("looking for checkpoints in '{}'", dir);
  const auto messages = run_on_all_ranks(communicator, doing, [&] {
    return communicator.rank() == 0 ? list_candidates(dir, search) : std::string();
  });
  const json listed = json::parse(messages.front());
  // Runs on the rank's own thread, whose pool counts the allocations.
  if (!listed.at("steps").empty()) prepare();
  FoundCheckpoint found;
  found.skipped = listed.at("skipped").get<std::vector<std::string>>();
  for (const json& candidate : listed.at("steps")) {
    const auto name = candidate.at("name").get<std::string>();
    found.step = candidate.at("step").get<std::int64_t>();
    found.path = fs::path(dir) / name;
    const std::string problem = first_problem(run_on_all_ranks(
        communicator, name, [&] { return damage_of(search.named_by, [&] { use(found.path); }); }));
    if (!problem.empty()) {
      found.skipped.push_back(fmt::format("{}: {}", name, problem));
      continue;
    }
    found.line = {candidate.at("run").get<std::string>(),
                  candidate.at("save_id").get<std::string>(),
                  candidate.at("commit").get<std::int64_t>(), search.launch};
    found.others = listed.at("others").get<std::vector<std::string>>();
    for (const json& leftover : listed.at("leftovers")) {
      const auto text = leftover.get<std::string>();
      if (parse_step_name(text.substr(0, text.find('.'))).value_or(-1) > found.step) {
        found.skipped.push_back(text + ": a save that did not finish");
      }
    }
    return found;
  }
  if (found.skipped.empty()) return std::nullopt;
  std::vector<std::string> all = found.skipped;
  for (const json& other : listed.at("others"))
    all.push_back("there are " + other.get<std::string>());
  TESSERA_CHECK(all.size() > found.skipped.size(), ErrorCode::checkpoint,
                "no checkpoint in '{}' is intact: {}; restore one or start in another folder", dir,
                join_some(all));
  fail(ErrorCode::checkpoint,
       "no checkpoint in '{}' of the run that was saved last is intact: {}; restore one, or name a "
       "step of another run with {}=PATH",
       dir, join_some(all), search.named_by);
}

json start_to_json(const RunStart& start) {
  return {{"run", start.line.run},
          {"parent", start.line.parent},
          {"parent_commit", start.line.parent_commit},
          {"others", start.others}};
}

RunStart choose_run(const fs::path& dir, const std::string& from) {
  RunStart start;
  const StepListing listing = path_exists(dir) ? list_committed(dir) : StepListing();
  start.line.run = new_run();
  if (!from.empty()) {
    const Manifest manifest = read_manifest(from);
    start.line.parent = manifest.save_id;
    start.line.parent_commit = manifest.lineage.commit;
    const std::string& run = manifest.lineage.run;
    const auto last =
        std::find_if(listing.steps.begin(), listing.steps.end(),
                     [&](const CommittedStep& step) { return step.lineage.run == run; });
    const bool goes_on = last != listing.steps.end() && last->save_id == manifest.save_id;
    if (goes_on) start.line.run = run;
  }
  start.others = describe_other_lines(listing, start.line.run);
  return start;
}

}  // namespace

std::optional<FoundCheckpoint> find_latest(comm::Communicator& communicator, const std::string& dir,
                                           const CheckpointQuery& search, LoadParts parts) {
  return find_usable_step(
      communicator, dir, search, [] {},
      [&](const std::string& path) {
        verify_share(path, static_cast<std::size_t>(communicator.rank()),
                     static_cast<std::size_t>(communicator.size()), parts);
      });
}

std::optional<FoundCheckpoint> load_latest(comm::Communicator& communicator, const std::string& dir,
                                           State& state, LoadParts parts,
                                           const CheckpointQuery& search,
                                           const Selection& selection) {
  return load_latest(
      communicator, dir, [&state]() -> State& { return state; }, parts, search, selection);
}

std::optional<FoundCheckpoint> load_latest(comm::Communicator& communicator, const std::string& dir,
                                           const std::function<State&()>& state, LoadParts parts,
                                           const CheckpointQuery& search,
                                           const Selection& selection) {
  State* made = nullptr;
  LoadedPieces loaded;
  auto found = find_usable_step(
      communicator, dir, search, [&] { made = &state(); },
      [&](const std::string& path) { loaded = load_pieces(path, *made, parts, selection); });
  if (!found) return found;
  made->scalars = std::move(loaded.scalars);
  found->fit = std::move(loaded.fit);
  return found;
}

RunStart start_line(comm::Communicator& communicator, const std::string& dir,
                    const std::string& from) {
  const std::string doing = fmt::format("looking for checkpoints in '{}'", dir);
  const auto messages = run_on_all_ranks(communicator, doing, [&] {
    return communicator.rank() == 0 ? start_to_json(choose_run(dir, from)).dump() : std::string();
  });
  const json chosen = json::parse(messages.front());
  return {{chosen.at("run").get<std::string>(),
           chosen.at("parent").get<std::string>(),
           chosen.at("parent_commit").get<std::int64_t>(),
           {}},
          chosen.at("others").get<std::vector<std::string>>()};
}

}  // namespace tessera::checkpoint
