// Steps whose loss or gradients must not be used: values that are not finite, and a loss far above
// those of the steps before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/state/scalars.h"

namespace tessera {

// The reaction of a run to such a step.
enum class SpikeAction : std::uint8_t {
  stop,      // Error(numeric), with the parameters of the step before
  skip,      // the step counts and its data is consumed; parameters and optimizer stay as they are
  rollback,  // the state of the run's newest checkpoint; the data from there to here is left out
};

std::string_view name_of(SpikeAction action);

// A loss is a spike if it is above m + sigma * max(s, m / 1000): m is the mean and s the standard
// deviation (over `window`) of the losses of the last `window` steps that changed the parameters.
// Until there are so many, only values that are not finite count.
struct SpikeOptions {
  static constexpr std::int64_t longest_window = 10'000;
  SpikeAction action = SpikeAction::stop;
  std::optional<double> sigma = std::nullopt;  // unset: only values that are not finite count
  std::int64_t window = 64;
};

// A step that was not used. Every rank has the same.
struct Spike {
  std::int64_t step = 0;
  // The loss was finite and above this. Unset: the loss or the norm was not finite.
  std::optional<double> limit = std::nullopt;
  float loss = 0;
  float grad_norm = 0;
  std::string cause = {};                // of a loss that is not finite, where the task knows it
  SpikeAction done = SpikeAction::skip;  // skip, or rollback
  std::int64_t to = 0;                   // rollback: the step that the run went on from
  [[nodiscard]] std::int64_t goes_on_after() const {
    return done == SpikeAction::rollback ? to : step;
  }
};

// Finds spikes. It sees only values that all ranks have, so all ranks decide alike. Its state is a
// part of checkpoints: a run that resumes decides as one that was not interrupted.
class SpikeWatch {
 public:
  // So many spikes in a row end the run, whatever the action.
  static constexpr int most_in_a_row = 10;

  explicit SpikeWatch(const SpikeOptions& options) : options_(options) {}

  // Judges a step and remembers it.
  std::optional<Spike> judge(std::int64_t step, float loss, float grad_norm);
  [[nodiscard]] int in_a_row() const { return in_a_row_; }

  // Adds nothing for a run that neither skips steps nor looks for a high loss.
  void save(Scalars& scalars) const;
  // Begins anew if the scalars are those of a run without a watch. Error(checkpoint) for values
  // that no watch has saved.
  void restore(const Scalars& scalars);

 private:
  // Unset: no limit yet.
  [[nodiscard]] std::optional<double> limit() const;

  SpikeOptions options_;
  std::vector<float> losses_;  // of the last steps, the oldest first
  int in_a_row_ = 0;
};

}  // namespace tessera
