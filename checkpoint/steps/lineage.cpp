// Finds the runs of a folder's steps, and their consequences for fall-back and retention.
#include "checkpoint/steps/lineage.h"

#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/io/failure.h"
#include "checkpoint/steps/commit.h"
#include "checkpoint/steps/manifest.h"

namespace tessera::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view aside_mark = ".of-";

bool newer(const CommittedStep& a, const CommittedStep& b) {
  return std::pair(a.lineage.commit, a.step) > std::pair(b.lineage.commit, b.step);
}

bool holds_manifest(const fs::path& step_folder) {
  std::error_code error;
  return fs::exists(fs::symlink_status(step_folder / manifest_name, error));
}

// True if `step` lies between `later` and the save that `later` came from: the run had fallen back
// behind it.
bool jumped_over(const CommittedStep& step, const CommittedStep& later) {
  return !later.lineage.parent.empty() && later.lineage.parent_commit < step.lineage.commit &&
         step.lineage.commit < later.lineage.commit;
}

// The steps of saved's run: `saved` first, then by falling commit.
std::vector<const CommittedStep*> own_steps(const StepListing& listing,
                                            const CommittedStep& saved) {
  std::vector<const CommittedStep*> own = {&saved};
  for (const CommittedStep& step : listing.steps) {
    if (step.lineage.run == saved.lineage.run && step.path != saved.path) own.push_back(&step);
  }
  return own;
}

// By rising score; among equal scores the newest first. Steps without a score are left out.
std::vector<const CommittedStep*> ranking(std::vector<const CommittedStep*> own) {
  std::erase_if(own, [](const CommittedStep* step) { return !step->score; });
  std::stable_sort(own.begin(), own.end(), [](const CommittedStep* a, const CommittedStep* b) {
    return *a->score < *b->score;
  });
  return own;
}

}  // namespace

const CommittedStep* StepListing::find(const std::string& save_id) const {
  const auto it = std::find_if(steps.begin(), steps.end(),
                               [&](const CommittedStep& step) { return step.save_id == save_id; });
  return it == steps.end() ? nullptr : &*it;
}

std::int64_t StepListing::last_commit() const {
  return steps.empty() ? 0 : steps.front().lineage.commit;
}

StepListing list_committed(const fs::path& dir) {
  StepListing listing;
  for (const std::string& name : names_in_folder(dir)) {
    const fs::path path = dir / name;
    if (is_leftover_name(name)) listing.leftovers.push_back(name);
    const auto step = parse_committed_name(name);
    if (!step) continue;
    try {
      const Manifest manifest = read_manifest(path);
      listing.steps.push_back({*step, path, manifest.save_id, manifest.lineage, manifest.score});
    } catch (const Error& error) {
      if (!is_damage(error)) throw;
      listing.unreadable.push_back({*step, path, error.what(), holds_manifest(path)});
    }
  }
  std::sort(listing.steps.begin(), listing.steps.end(), newer);
  return listing;
}

std::vector<CommittedStep> line_of(const StepListing& listing, const std::string& run) {
  std::vector<CommittedStep> line;
  std::set<std::string> seen;
  std::string next_run = run;
  std::int64_t last = listing.last_commit();
  while (seen.insert(next_run).second) {
    const std::size_t before = line.size();
    for (const CommittedStep& step : listing.steps) {
      if (step.lineage.run == next_run && step.lineage.commit <= last) line.push_back(step);
    }
    if (line.size() == before) break;
    const CommittedStep* parent = listing.find(line.back().lineage.parent);
    if (parent == nullptr) break;
    next_run = parent->lineage.run;
    last = parent->lineage.commit;
  }
  return line;
}

std::vector<CommittedStep> superseded(const StepListing& listing, const CommittedStep& saved,
                                      int keep, int keep_best) {
  std::vector<CommittedStep> out;
  if (keep <= 0) return out;
  const std::vector<const CommittedStep*> own = own_steps(listing, saved);
  std::vector<const CommittedStep*> best = ranking(own);
  best.resize(std::min(best.size(), static_cast<std::size_t>(keep_best)));
  int kept = 0;
  for (const CommittedStep* step : own) {
    const bool counts = std::none_of(own.begin(), own.end(), [&](const CommittedStep* later) {
      return jumped_over(*step, *later);
    });
    if (kept < keep) {
      kept += counts ? 1 : 0;
    } else if (std::find(best.begin(), best.end(), step) == best.end()) {
      out.push_back(*step);
    }
  }
  return out;
}

const CommittedStep* best_of(const StepListing& listing, const CommittedStep& saved) {
  const std::vector<const CommittedStep*> best = ranking(own_steps(listing, saved));
  return best.empty() ? nullptr : best.front();
}

std::vector<std::string> describe_other_lines(const StepListing& listing, const std::string& run) {
  std::map<std::string, std::vector<const CommittedStep*>> lines;
  for (const CommittedStep& step : listing.steps) {
    if (step.lineage.run != run) lines[step.lineage.run].push_back(&step);
  }
  std::vector<std::string> out;
  for (const auto& [other, steps] : lines) {
    out.push_back(fmt::format(
        "{} {} of another run ({}), the last saved is '{}'; {} and will not be touched, "
        "checkpoint.resume with that path goes on from it",
        steps.size(), steps.size() == 1 ? "step" : "steps", other, steps.front()->path.string(),
        steps.size() == 1 ? "it stays" : "they stay"));
  }
  return out;
}

std::string aside_name(std::int64_t step, const std::string& run, int copy) {
  const std::string name = fmt::format("{}{}{}", step_name(step), aside_mark, run);
  return copy == 0 ? name : fmt::format("{}.{}", name, copy);
}

std::optional<std::int64_t> parse_committed_name(std::string_view name) {
  const auto mark = name.find(aside_mark);
  if (mark == std::string_view::npos) return parse_step_name(name);
  const std::string_view rest = name.substr(mark + aside_mark.size());
  const bool ours = rest.size() >= 16 &&
                    rest.substr(0, 16).find_first_not_of("0123456789abcdef") == rest.npos &&
                    rest.substr(16).find_first_not_of(".0123456789") == rest.npos;
  return ours ? parse_step_name(name.substr(0, mark)) : std::nullopt;
}

}  // namespace tessera::checkpoint
