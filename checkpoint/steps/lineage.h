// The run of a step: the run that saved it, the save it came from, and its place in the order of
// all commits of a folder. Several runs may use one folder; each is a line of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// The run of all steps that were saved before manifests named the run.
inline constexpr const char* unnamed_run = "0000000000000000";

struct Lineage {
  std::string run = unnamed_run;  // 16 hexadecimal digits
  std::string launch;             // the launch that saved it, restarts included; "" when unknown
  std::int64_t commit = 0;        // grows with every commit of the folder
  std::string parent;             // save id of the state that training came from; "": none, unknown
  std::int64_t parent_commit = 0;  // of the parent; not used without one
};

struct CommittedStep {
  std::int64_t step = 0;
  std::filesystem::path path;
  std::string save_id;
  Lineage lineage;
  std::optional<double> score;
};

// A folder with a step's name that cannot be read as a step.
struct UnreadableStep {
  std::int64_t step = 0;
  std::filesystem::path path;
  std::string reason;
  bool has_manifest = false;
};

struct StepListing {
  std::vector<CommittedStep> steps;  // by falling commit; at equal commits by falling step
  std::vector<UnreadableStep> unreadable;
  std::vector<std::string> leftovers;  // names of unfinished saves

  [[nodiscard]] const CommittedStep* find(const std::string& save_id) const;
  [[nodiscard]] std::int64_t last_commit() const;
};

// Reads every manifest of DIR. Damage makes a step unreadable; a failing system call throws.
StepListing list_committed(const std::filesystem::path& dir);

// The steps of a run by falling commit, then those of the run that it came from.
std::vector<CommittedStep> line_of(const StepListing& listing, const std::string& run);

// The steps of saved's run that retention removes; the `keep` newest and the `keep_best` with the
// lowest scores stay (keep = 0: none is removed). A step that the run fell back behind, because it
// was damaged, is not counted, and is removed with the steps older than the last one kept.
std::vector<CommittedStep> superseded(const StepListing& listing, const CommittedStep& saved,
                                      int keep, int keep_best);
// The step with the lowest score in saved's run; among equal scores the newest.
const CommittedStep* best_of(const StepListing& listing, const CommittedStep& saved);

// One line of text for each run of the folder except `run`: its steps, and that they stay.
std::vector<std::string> describe_other_lines(const StepListing& listing, const std::string& run);

// "step-12.of-<run>": the new name of a step whose name another run needs.
std::string aside_name(std::int64_t step, const std::string& run, int copy);
// The step of a name "step-N" or "step-N.of-<run>", or none.
std::optional<std::int64_t> parse_committed_name(std::string_view name);

}  // namespace tessera::checkpoint
