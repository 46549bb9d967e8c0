// The thread's stack of module calls.
#include "engine/module_call.h"

#include <utility>

#include "base/error.h"
#include "engine/autograd.h"

namespace tessera {
namespace {
thread_local std::shared_ptr<ModuleCall> innermost_call;
thread_local ModuleCalls* calls_made = nullptr;
thread_local ModuleCallReplay* calls_again = nullptr;
thread_local std::uint64_t calls_of_thread = 0;
thread_local const ModulePlace* innermost_place_of_modules = nullptr;
}  // namespace

std::string ModulePosition::path() const {
  const auto above = parent.lock();
  const std::string prefix = above ? above->path() : std::string();
  return prefix.empty() ? name : prefix + "." + name;
}

std::string ModulePosition::describe() const {
  std::string where = path();
  if (where.empty()) where = "the root module";
  return class_name.empty() ? where : where + ", of class " + class_name;
}

ModulePlace::ModulePlace(std::shared_ptr<const ModulePosition> position, Pass pass)
    : position_(std::move(position)),
      pass_(pass),
      outer_(std::exchange(innermost_place_of_modules, this)) {}

ModulePlace::~ModulePlace() {
  innermost_place_of_modules = outer_;
}

std::shared_ptr<const ModulePosition> ModulePlace::current() {
  return innermost_place_of_modules == nullptr ? nullptr : innermost_place_of_modules->position_;
}

std::string ModulePlace::describe() const {
  if (!position_) return {};
  const std::string where = position_->describe();
  return pass_ == Pass::forward || where.empty() ? where : "the backward of " + where;
}

const std::shared_ptr<ModuleCall>& current_module_call() {
  return innermost_call;
}

ModuleCallScope::ModuleCallScope(const std::shared_ptr<const ModuleHooks>& hooks)
    : previous_(innermost_call) {
  if (!hooks) return;
  std::shared_ptr<ModuleCall> call;
  if (calls_again != nullptr) {
    call = calls_again->next(hooks);
    call->recompute = true;
  } else {
    call = std::make_shared<ModuleCall>();
    call->parent = previous_;
    call->hooks = hooks;
    call->depth = previous_ ? previous_->depth + 1 : 1;
    call->number = ++calls_of_thread;
    call->recompute = autograd::in_backward();
  }
  if (calls_made != nullptr) calls_made->push_back(call);
  if (hooks->before_forward) hooks->before_forward(*call);
  call_ = std::move(call);
  innermost_call = call_;
}

ModuleCallScope::~ModuleCallScope() {
  innermost_call = previous_;
  if (call_ && !finished_ && call_->hooks->abandon_forward) call_->hooks->abandon_forward(*call_);
}

void ModuleCallScope::finish() {
  innermost_call = previous_;
  finished_ = true;
  if (!call_) return;
  for (const auto& callback : call_->before_leaving) callback();
  call_->before_leaving.clear();
  if (call_->hooks->after_forward) call_->hooks->after_forward(*call_);
}

ModuleCallRecording::ModuleCallRecording(ModuleCalls& made)
    : previous_(std::exchange(calls_made, &made)) {}

ModuleCallRecording::~ModuleCallRecording() {
  calls_made = previous_;
}

ModuleCallReplay::ModuleCallReplay(std::shared_ptr<ModuleCall> parent, const ModuleCalls& made)
    : made_(made),
      outer_call_(std::exchange(innermost_call, std::move(parent))),
      outer_replay_(std::exchange(calls_again, this)) {}

ModuleCallReplay::~ModuleCallReplay() {
  innermost_call = outer_call_;
  calls_again = outer_replay_;
}

std::shared_ptr<ModuleCall> ModuleCallReplay::next(
    const std::shared_ptr<const ModuleHooks>& hooks) {
  TESSERA_REQUIRE(next_ < made_.size() && made_[next_]->hooks == hooks,
                  "a recomputed function calls other modules than it did the first time");
  return made_[next_++];
}

}  // namespace tessera
