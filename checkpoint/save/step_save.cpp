// Saves into a step folder, which is committed by its rename.
#include <chrono>
#include <optional>
#include <utility>

#include "checkpoint/save/writer.h"
#include "checkpoint/steps/commit.h"

namespace tessera::checkpoint {
namespace {

class StepDestination final : public Destination {
 public:
  StepDestination(std::filesystem::path dir, std::int64_t step, std::string save_id,
                  const SaveOptions& options)
      : dir_(std::move(dir)), step_(step), save_id_(std::move(save_id)), options_(options) {}
  void prepare(std::uint64_t needed_bytes) override {
    // Another run's save may take as long as its disk; the lock of a dead run is gone.
    const bool for_ever = options_.stall_timeout.count() == 0;
    pending_.emplace(dir_, step_, save_id_, needed_bytes, options_.line,
                     for_ever ? std::chrono::hours(24) : options_.stall_timeout);
  }
  std::string commit(Manifest manifest) override {
    manifest.lineage = pending_->lineage();
    const auto warnings =
        pending_->commit(to_text(manifest), {options_.keep, options_.keep_best}, options_.score);
    return saved_line(manifest.lineage.run, manifest.lineage.commit, warnings);
  }
  std::string roll_back() noexcept override {
    return pending_ ? pending_->roll_back() : std::string();
  }

 private:
  std::filesystem::path dir_;
  std::int64_t step_;
  std::string save_id_;
  SaveOptions options_;
  std::optional<PendingStep> pending_;
};

}  // namespace

SaveJob step_job(const std::filesystem::path& dir, std::int64_t step, State state,
                 const SaveOptions& options) {
  SaveJob job;
  job.target = dir / step_name(step);
  job.step = step;
  job.state = std::move(state);
  job.options = options;
  job.partial = [dir, step](const std::string& id) { return dir / partial_name(step, id); };
  job.destination = [dir, step, options](const std::string& id) {
    return std::make_unique<StepDestination>(dir, step, id, options);
  };
  return job;
}

Saved save(comm::Communicator& communicator, const std::string& dir, std::int64_t step,
           const State& state, const SaveOptions& options) {
  return run_save(communicator, step_job(dir, step, state, options));
}

}  // namespace tessera::checkpoint
