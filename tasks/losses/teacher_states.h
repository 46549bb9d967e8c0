// The part of a loss that compares the outputs of modules of the trained model with those of
// modules of its teacher.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/hook_list.h"
#include "engine/nn/module.h"
#include "engine/tensor.h"

namespace tessera::tasks {

enum class StateLoss : std::uint8_t {
  mse,     // the mean of (student - teacher)^2, over rows and width
  cosine,  // the mean over rows of 1 - the cosine of the two rows, as DistilBERT's
};

// Modules as Module::named_modules() names them, or the end of such a name after a dot if one
// module alone has it: "h.1" for "transformer.h.1".
struct StatePair {
  std::string student, teacher;
  double weight = 1;
  StateLoss loss = StateLoss::mse;
};

// One element in fp32 (fp64 for a student of fp64). `student` and `teacher` [..., width] have one
// shape and any floating dtypes; a row is their last dimension. `targets` has an id for each row,
// and rows with the target -100 do not count; an undefined one: all count. The teacher's gets no
// gradient. Without a row that counts, loss and gradient are 0.
Tensor teacher_state_loss(const Tensor& student, const Tensor& teacher, const Tensor& targets,
                          StateLoss loss);

// Watches the modules of both models during their forwards, and compares their outputs. A module
// with several results is compared by its first one, a norm by what it has normalised. The modules
// must outlive it. Its hooks stay after a forward, because a module that is recomputed in backward
// must take the same steps there.
class TeacherStates {
 public:
  TeacherStates() = default;  // compares nothing
  // `place` begins messages. Throws Error(configuration) for a name that no module has, or several.
  TeacherStates(std::vector<StatePair> pairs, nn::Module& student, nn::Module& teacher,
                std::string place);

  // The result of forward(), a function without arguments. One call of each of the two precedes
  // each add_to().
  template <class Forward>
  Tensor of_teacher(const Forward& forward) {
    const Watch watch(teacher_.get());
    return forward();
  }
  template <class Forward>
  Tensor of_student(const Forward& forward) {
    const Watch watch(student_.get());
    return forward();
  }
  // Takes the hooks away until the next of the two forwards, for forwards that are to be as without
  // them.
  void rest();
  // loss + the sum of weight * teacher_state_loss() of all pairs, in their order; then drops the
  // trained model's outputs. Without pairs `loss` itself. `targets`: as above. Throws
  // Error(configuration) if a module was not called, or if two outputs have different shapes.
  [[nodiscard]] Tensor add_to(const Tensor& loss, const Tensor& targets);
  // Task::after_loss() of a task with a teacher, which messages call `teacher`. Drops the teacher's
  // outputs. `result`: that of its forward, called `name` in messages, or undefined if nothing was
  // learned from it.
  [[nodiscard]] std::string fault_of_teacher(double value, const std::string& teacher,
                                             const std::string& name, const Tensor& result);

 private:
  struct Watched {
    explicit Watched(std::string of) : model(std::move(of)) {}
    ~Watched() { remove_hooks(); }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;
    void add_hooks();
    void remove_hooks();

    std::string model;  // for messages
    std::vector<std::string> names;
    std::vector<nn::Module*> modules;
    std::vector<Tensor> outputs;
    std::vector<HookHandle> hooks;
    bool keeps_outputs = false;
  };
  // Outputs are kept during its lifetime.
  class Watch {
   public:
    explicit Watch(Watched* watched);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Watched* watched_;  // null: nothing is compared
  };

  void find(Watched& watched, nn::Module& root) const;
  void require_outputs(const Watched& watched, std::size_t pair) const;
  void require_comparable(std::size_t pair, const Tensor& targets) const;

  std::vector<StatePair> pairs_;
  std::unique_ptr<Watched> student_, teacher_;  // hooks refer to them
  std::string place_;
};

}  // namespace tessera::tasks
