// From events to sentences.
#include "cli/run_notes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/counted.h"
#include "base/text/byte_size.h"
#include "engine/ops/products/quantized.h"
#include "training/device.h"

namespace tessera::cli {
namespace {

struct NoteWriter {
  const training::Recipe& recipe;

  std::string operator()(const events::Resumed& event) const {
    if (event.has_data_position) return fmt::format("resumed from {}", event.folder);
    return fmt::format(
        "resumed from {}: weights, moments and step {}; it has no position in the data, so the "
        "data order starts again",
        event.folder, event.step);
  }
  std::string operator()(const events::SettingsChanged& event) const {
    return fmt::format("{} was trained with {}; this run goes on with {}", event.folder,
                       event.before, event.now);
  }
  std::string operator()(const events::StepSkipped& event) const {
    return "passed over " + event.reason;
  }
  std::string operator()(const events::OtherRun& event) const {
    return fmt::format("{}{} holds {}", event.resumed_newest ? "the run saved last goes on; " : "",
                       event.folder, event.description);
  }
  std::string operator()(const events::Restarted& event) const {
    if (event.found_save) {
      return fmt::format("restart {}: from the newest save of this run", event.restarts);
    }
    return fmt::format(
        "restart {}: this run has saved nothing yet, so it follows checkpoint.resume: {}",
        event.restarts, recipe.checkpoint.resume);
  }
  std::string operator()(const events::WeightsLoaded& event) const {
    return fmt::format("{} from {}", event.adapter ? "adapter" : "weights", event.folder);
  }
  std::string operator()(const events::LittleRoom& event) const {
    return fmt::format(
        "warning: checkpoint.dir: '{}' has {} free, and {} of {} need {}; {}", event.folder,
        bytes_text(event.free_bytes), counted(event.checkpoints, "checkpoint"),
        bytes_text(event.checkpoint_bytes),
        bytes_text(event.checkpoint_bytes * static_cast<std::uint64_t>(event.checkpoints)),
        recipe.checkpoint.keep > 0 ? "lower checkpoint.keep" : "checkpoint.keep removes old ones");
  }
  std::string operator()(const events::SaveBegun& event) const {
    std::string note =
        fmt::format("saving step {}: copied in {:.3f} s", event.step, event.copied_seconds);
    if (event.waited_seconds) {
      note += fmt::format(", after {:.3f} s of waiting for the one before", *event.waited_seconds);
    }
    return note;
  }
  std::string operator()(const events::Saved& event) const {
    return "saved " + event.folder +
           (event.seconds ? fmt::format(" in {:.3f} s", *event.seconds) : "");
  }
  std::string operator()(const events::Warning& event) const { return "warning: " + event.text; }
  std::string operator()(const events::Exported& event) const {
    return "exported the weights to " + event.folder;
  }
};

}  // namespace

std::string note_of(const RunEvent& event, const training::Recipe& recipe) {
  return std::visit(NoteWriter{recipe}, event);
}

std::string note_of(const Spike& spike) {
  const auto number = [](float value) { return std::isnan(value) ? std::fabs(value) : value; };
  const std::string cause =
      spike.limit ? fmt::format("loss {:.4f} is above the limit {:.4f}", spike.loss, *spike.limit)
                  : fmt::format("loss {} and gradient norm {} are not finite{}{}",
                                number(spike.loss), number(spike.grad_norm),
                                spike.cause.empty() ? "" : ", because ", spike.cause);
  return spike.done == SpikeAction::rollback
             ? fmt::format("step {}: {}: back to step {}, without the data since then", spike.step,
                           cause, spike.to)
             : fmt::format("step {}: {}: the step is skipped", spike.step, cause);
}

std::string note_of_parts(const StepMetrics& metrics) {
  return fmt::format(
      "step {}: the ranks' parts of a batch are {} samples from now on, no longer {}: in this step "
      "the slowest rank computed {:.0f} % longer than the mean",
      metrics.step, text_of_shares(metrics.rebalanced_to), text_of_shares(metrics.rank_samples),
      100 * metrics.imbalance.value_or(0));
}

std::string describe_data(const std::vector<std::pair<std::string, std::int64_t>>& counts) {
  std::string text;
  for (auto [name, count] : counts) {
    std::replace(name.begin(), name.end(), '_', ' ');
    text += fmt::format("{}{} {}", text.empty() ? "data: " : ", ", name, count);
  }
  return text;
}

std::string describe(const Trainer& training, const training::Recipe& recipe) {
  const tasks::Task& task = training.task();
  const std::vector<std::int64_t> sets = task.samples_per_epoch();
  std::int64_t all = 0, trained = 0, ignored = 0;
  for (const auto& parameter : training.model().sharded_parameters()) {
    all += parameter_elements(parameter.shape, parameter.local.dtype());
    if (parameter.local.requires_grad()) trained += parameter.shape.elements();
  }
  for (const auto& parameter : training.model().ignored_parameters()) {
    ignored += parameter_elements(parameter.shape, parameter.tensor.dtype());
  }
  const Context& context = training.context();
  return fmt::format(
      "{} parameters{}{}, {} over {}{}, batch {} {}{}, {} an epoch, on {}", all,
      trained == all ? "" : fmt::format(", {} of them trained", trained),
      ignored == 0 ? "" : fmt::format(", {} ignored: whole and frozen", ignored),
      name_of(recipe.sharding.sharding_strategy), counted(context.world_size(), "rank"),
      context.world_size() == 1 ? "" : fmt::format(" ({})", context.communicator().backend()),
      task.describe_batch(training::batch_size_per_rank(recipe, context.world_size())),
      recipe.sharding.context_parallel == 1
          ? "a rank"
          : fmt::format("on {} ranks together", recipe.sharding.context_parallel),
      training.shares().are_asked()
          ? fmt::format(" in parts of {} samples", text_of_shares(training.shares().samples()))
          : "",
      sets.size() == 1 ? counted(sets.front(), "sample")
                       : fmt::format("{} samples", fmt::join(sets, " + ")),
      training::describe_choice(recipe, context.device()));
}

}  // namespace tessera::cli
