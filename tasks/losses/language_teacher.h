// A language model that learns from another one: from its logits, and from outputs of its modules.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/nn/module.h"
#include "models/language_model.h"
#include "sharding/runtime/statistics.h"
#include "tasks/losses/distillation.h"
#include "tasks/losses/teacher_states.h"

namespace tessera::tasks {

// A model whose logits the trained one learns.
class Teacher {
 public:
  Teacher() = default;
  virtual ~Teacher() = default;
  Teacher(const Teacher&) = delete;
  Teacher& operator=(const Teacher&) = delete;

  // ids [batch, length] -> logits [batch, length, vocabulary of the trained model], outside the
  // graph. Collective.
  [[nodiscard]] virtual Tensor logits(const Tensor& ids, const models::Documents& documents) = 0;
  // The model that logits() calls.
  [[nodiscard]] virtual nn::Module& module() = 0;
  // The communication of its forwards so far.
  [[nodiscard]] virtual CommunicationStatistics communication() const = 0;
};

struct TeachingOptions {
  std::shared_ptr<Teacher> teacher = {};  // null: there is none
  DistillationOptions distillation = {};
  std::vector<StatePair> states = {};          // compared beside the logits
  std::string folder = {}, states_place = {};  // for messages
};

// The parts of a Task with a teacher.
class Teaching {
 public:
  Teaching() = default;  // without a teacher
  // `trained` must outlive it. Throws Error(configuration) as TeacherStates.
  Teaching(const TeachingOptions& options, models::LanguageModel& trained);

  [[nodiscard]] bool has_teacher() const { return options_.teacher != nullptr; }
  // Collective, with a teacher: distillation_loss() and the losses of the states, over the targets
  // [batch, length] that are not -100. Rows may hold several texts.
  [[nodiscard]] Tensor loss(const Tensor& ids, const Tensor& targets,
                            const models::Documents& documents = {});
  // Task::after_loss().
  [[nodiscard]] std::string after_loss(double value);
  // Before forwards that are to be as without a teacher, as those of an evaluation.
  void rest() { states_.rest(); }
  // Task::communication().
  [[nodiscard]] CommunicationStatistics communication() const;

 private:
  TeachingOptions options_;
  models::LanguageModel* trained_ = nullptr;
  TeacherStates states_;
  Tensor taught_;  // the teacher's logits, until after_loss()
};

}  // namespace tessera::tasks
