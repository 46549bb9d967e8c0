// The order of the two forwards.
#include "tasks/losses/language_teacher.h"

#include <utility>

namespace tessera::tasks {

Teaching::Teaching(const TeachingOptions& options, models::LanguageModel& trained)
    : options_(options), trained_(&trained) {
  if (!has_teacher()) return;
  states_ = {options_.states, trained, options_.teacher->module(), options_.states_place};
}

// The teacher's forward is the first, so that nothing but its logits is kept beside the activations
// of the trained model.
Tensor Teaching::loss(const Tensor& ids, const Tensor& targets,
                      const models::Documents& documents) {
  taught_ = states_.of_teacher([&] { return options_.teacher->logits(ids, documents); });
  const Tensor logits = states_.of_student([&] { return trained_->packed_logits(ids, documents); });
  return states_.add_to(distillation_loss(logits, taught_, targets, options_.distillation),
                        targets);
}

std::string Teaching::after_loss(double value) {
  const Tensor taught = std::exchange(taught_, {});
  return states_.fault_of_teacher(value, options_.folder, "the logits", taught);
}

CommunicationStatistics Teaching::communication() const {
  return has_teacher() ? options_.teacher->communication() : CommunicationStatistics{};
}

}  // namespace tessera::tasks
