// Finds modules by name, keeps their outputs in a forward, and compares them.
#include "tasks/losses/teacher_states.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/text/nearest.h"
#include "engine/autograd.h"
#include "engine/nn/layers.h"
#include "engine/ops.h"
#include "tasks/losses/counted_rows.h"
#include "tasks/losses/finite_values.h"

namespace tessera::tasks {
namespace {

// torch clamps norms to at least this in its cosine.
constexpr double least_norm_of_states = 1e-8;

std::int64_t width_of(const Tensor& x) {
  return x.size(x.dimensions() - 1);
}

Tensor rows_of(const Tensor& x, DType dtype) {
  return cast(reshape(x, {x.elements() / width_of(x), width_of(x)}), dtype);
}

// The losses of rows, each over the width: [rows, width] -> [rows, 1].
Tensor loss_of_rows(const Tensor& student, const Tensor& teacher, StateLoss loss) {
  if (loss == StateLoss::cosine) {
    const Tensor cosine = sum(normalize_rows(student, least_norm_of_states) *
                                  normalize_rows(teacher, least_norm_of_states),
                              {1}, true);
    return 1.0 - cosine;
  }
  return mean(square(student - teacher), {1}, true);
}

// The names of modules that have an output, with and without the first part of each.
std::vector<std::string> likely_names(nn::Module& root) {
  std::vector<std::string> names;
  for (const auto& [name, module] : root.named_modules()) {
    if (name.empty() || !module->has_forward()) continue;
    names.push_back(name);
    const auto dot = name.find('.');
    if (dot != std::string::npos) names.push_back(name.substr(dot + 1));
  }
  return names;
}

bool is_norm(const nn::Module& module) {
  return dynamic_cast<const nn::LayerNormImpl*>(&module) != nullptr ||
         dynamic_cast<const nn::RmsNormImpl*>(&module) != nullptr;
}

}  // namespace

Tensor teacher_state_loss(const Tensor& student, const Tensor& teacher, const Tensor& targets,
                          StateLoss loss) {
  TESSERA_REQUIRE(
      student.shape() == teacher.shape() && student.dimensions() > 0 && student.elements() > 0,
      "teacher_state_loss of states of shape {} and a teacher's of shape {}",
      student.shape().to_string(), teacher.shape().to_string());
  const DType wide = student.dtype() == float64 ? float64 : float32;
  const Tensor own = rows_of(student, wide), taught = rows_of(teacher.detach(), wide);
  const Tensor rows = loss_of_rows(own, taught, loss);
  if (!targets.defined()) return mean(rows);
  TESSERA_REQUIRE(targets.elements() == own.size(0),
                  "teacher_state_loss of states of shape {} with targets of shape {}",
                  student.shape().to_string(), targets.shape().to_string());
  Tensor counts, share;
  {
    const NoGradGuard no_grad;
    counts = counted_rows(targets, wide);
    share = 1.0 / maximum(sum(counts), Tensor::full({}, 1, wide, targets.device()));
  }
  return sum(rows * counts) * share;
}

TeacherStates::TeacherStates(std::vector<StatePair> pairs, nn::Module& student, nn::Module& teacher,
                             std::string place)
    : pairs_(std::move(pairs)), place_(std::move(place)) {
  if (pairs_.empty()) return;
  student_ = std::make_unique<Watched>("the trained model");
  teacher_ = std::make_unique<Watched>("the teacher");
  for (const StatePair& pair : pairs_) {
    student_->names.push_back(pair.student);
    teacher_->names.push_back(pair.teacher);
  }
  find(*student_, student);
  find(*teacher_, teacher);
}

void TeacherStates::find(Watched& watched, nn::Module& root) const {
  const auto modules = root.named_modules();
  for (std::string& wanted : watched.names) {
    std::vector<std::pair<std::string, nn::Module*>> found;
    for (const auto& [name, module] : modules) {
      if (name.empty()) continue;
      if (name == wanted) {
        found.assign(1, {name, module});
        break;
      }
      if (name.ends_with("." + wanted)) found.emplace_back(name, module);
    }
    TESSERA_CHECK(!found.empty(), ErrorCode::configuration, "{}: {} has no module {}{}", place_,
                  watched.model, wanted, did_you_mean(wanted, likely_names(root)));
    TESSERA_CHECK(found.size() == 1, ErrorCode::configuration,
                  "{}: {} has several modules {}, as {} and {}; give the whole name of one", place_,
                  watched.model, wanted, found[0].first, found.back().first);
    TESSERA_CHECK(found[0].second->has_forward(), ErrorCode::configuration,
                  "{}: {} of {} only holds other modules, and has no output; name one of those",
                  place_, found[0].first, watched.model);
    wanted = found[0].first;
    watched.modules.push_back(found[0].second);
  }
}

void TeacherStates::Watched::add_hooks() {
  if (!hooks.empty()) return;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    hooks.push_back(modules[i]->register_forward_hook(
        [this, i](nn::Module& module, std::span<const Tensor>, std::span<Tensor> results) {
          if (!keeps_outputs || results.empty()) return;
          outputs[i] = is_norm(module) ? results.back() : results.front();
        }));
  }
}

void TeacherStates::Watched::remove_hooks() {
  for (HookHandle& hook : hooks) hook.remove();
  hooks.clear();
}

TeacherStates::Watch::Watch(Watched* watched) : watched_(watched) {
  if (watched_ == nullptr) return;
  watched_->add_hooks();
  watched_->outputs.assign(watched_->modules.size(), {});
  watched_->keeps_outputs = true;
}

TeacherStates::Watch::~Watch() {
  if (watched_ != nullptr) watched_->keeps_outputs = false;
}

void TeacherStates::rest() {
  if (student_) student_->remove_hooks();
  if (teacher_) teacher_->remove_hooks();
}

void TeacherStates::require_outputs(const Watched& watched, std::size_t pair) const {
  TESSERA_CHECK(watched.outputs[pair].defined(), ErrorCode::configuration,
                "{}: {} of {} is computed as a part of the module around it, and has no output of "
                "its own; name that module",
                place_, watched.names[pair], watched.model);
}

void TeacherStates::require_comparable(std::size_t pair, const Tensor& targets) const {
  const Tensor &own = student_->outputs[pair], &taught = teacher_->outputs[pair];
  const std::int64_t width = width_of(own);
  TESSERA_CHECK(width == width_of(taught), ErrorCode::configuration,
                "{}: the output of {} is {} wide and that of the teacher's {} is {} wide; they are "
                "compared number by number, so name modules of one width",
                place_, student_->names[pair], width, teacher_->names[pair], width_of(taught));
  const std::int64_t rows = targets.defined() ? targets.elements() : own.elements() / width;
  for (const Watched* model : {student_.get(), teacher_.get()}) {
    const Tensor& output = model->outputs[pair];
    TESSERA_CHECK(output.elements() == rows * width, ErrorCode::configuration,
                  "{}: the output of {} of {} has the shape {}, without a row for each token",
                  place_, model->names[pair], model->model, output.shape().to_string());
  }
}

Tensor TeacherStates::add_to(const Tensor& loss, const Tensor& targets) {
  Tensor total = loss;
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    require_outputs(*student_, i);
    require_outputs(*teacher_, i);
    require_comparable(i, targets);
    const Tensor taught = reshape(teacher_->outputs[i], student_->outputs[i].shape());
    const Tensor part = teacher_state_loss(student_->outputs[i], taught, targets, pairs_[i].loss);
    total = total + part * pairs_[i].weight;
    student_->outputs[i] = Tensor();
  }
  return total;
}

std::string TeacherStates::fault_of_teacher(double value, const std::string& teacher,
                                            const std::string& name, const Tensor& result) {
  std::vector<std::pair<std::string, Tensor>> taught{{name, result}};
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    taught.emplace_back(fmt::format("the outputs of {}", teacher_->names[i]),
                        std::exchange(teacher_->outputs[i], {}));
  }
  if (std::isfinite(value)) return {};
  for (const auto& [what, tensor] : taught) {
    if (!tensor.defined() || all_finite(tensor)) continue;
    return fmt::format(
        "{} of the teacher {} are not: {} (look at its weights, or compute in a wider dtype)", what,
        teacher, first_not_finite(tensor));
  }
  return {};
}

}  // namespace tessera::tasks
