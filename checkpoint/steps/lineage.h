// Whose a step is: the run that saved it, the save it came from, and its place in the order of all
// commits of a folder. Several runs may use one folder; each is a line of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// The run of all steps that were saved before manifests named one.
inline constexpr const char* unnamed_run = "0000000000000000";

struct Lineage {
  std::string run = unnamed_run;  // 16 hexadecimal digits
  std::string launch;             // the launch that saved it, restarts included; "" when unknown
  std::int64_t commit = 0;        // grows with every commit of the folder
  std::string parent;             // save id of the state that training came from; "": none, unknown
  std::int64_t parent_commit = 0;  // of the parent; of no meaning without one
};

struct CommittedStep {
  std::int64_t step = 0;
  std::filesystem::path path;
  std::string save_id;
  Lineage lineage;
  std::optional<double> score;
};

// What bears a step's name and cannot be read as one.
struct UnreadableStep {
  std::int64_t step = 0;
  std::filesystem::path path;
  std::string reason;
  bool has_manifest = false;
};

struct StepListing {
  std::vector<CommittedStep> steps;  // by falling commit; of one commit by falling step
  std::vector<UnreadableStep> unreadable;
  std::vector<std::string> leftovers;  // names of unfinished saves

  [[nodiscard]] const CommittedStep* find(const std::string& save_id) const;
  [[nodiscard]] std::int64_t last_commit() const;
};

// Reads every manifest of DIR. Damage makes a step unreadable; a failing system call throws.
StepListing list_committed(const std::filesystem::path& dir);

// The steps of a run by falling commit, then those that it came from.
std::vector<CommittedStep> line_of(const StepListing& listing, const std::string& run);

// The steps of saved's run that retention removes when the `keep` newest and the `keep_best` with
// the lowest scores stay (keep = 0: none). A step that the run fell back behind, since it was
// damaged, counts for nothing and goes with those older than the last one kept.
std::vector<CommittedStep> superseded(const StepListing& listing, const CommittedStep& saved,
                                      int keep, int keep_best);
// The step with the lowest score among saved's run, of equal ones the newest.
const CommittedStep* best_of(const StepListing& listing, const CommittedStep& saved);

// A line of text for each run of the folder but `run`: its steps, and that they stay.
std::vector<std::string> describe_other_lines(const StepListing& listing, const std::string& run);

// "step-12.of-<run>": where a step goes whose name another run needs.
std::string aside_name(std::int64_t step, const std::string& run, int copy);
// The step of a name "step-N" or "step-N.of-<run>", or none.
std::optional<std::int64_t> parse_committed_name(std::string_view name);

}  // namespace tessera::checkpoint
