// The thread's stack of module calls.
#include "engine/module_call.h"

namespace tessera {
namespace {
thread_local std::shared_ptr<ModuleCall> innermost_call;
}

const std::shared_ptr<ModuleCall>& current_module_call() {
  return innermost_call;
}

ModuleCallScope::ModuleCallScope(const std::shared_ptr<const ModuleHooks>& hooks)
    : previous_(innermost_call) {
  if (!hooks) return;
  if (hooks->before_forward) hooks->before_forward();
  call_ = std::make_shared<ModuleCall>();
  call_->parent = previous_;
  call_->hooks = hooks;
  call_->depth = previous_ ? previous_->depth + 1 : 1;
  innermost_call = call_;
}

ModuleCallScope::~ModuleCallScope() {
  innermost_call = previous_;
}

void ModuleCallScope::finish() {
  innermost_call = previous_;
  if (call_ && call_->hooks->after_forward) call_->hooks->after_forward();
}

}  // namespace tessera
