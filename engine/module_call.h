// A module's forward as a region of the tape. Regions nest as the calls do; backward passes through
// them in reverse.
#pragma once

#include <functional>
#include <memory>

namespace tessera {

// What somebody (sharding) wants to know about a module's calls. Empty functions are skipped. All
// run on the rank's compute stream (its thread); an exception ends the forward or backward.
struct ModuleHooks {
  std::function<void()> before_forward;
  std::function<void()> after_forward;
  std::function<void()> before_backward;  // backward reaches the first node of the call
  std::function<void()> after_backward;   // no node of the call is left to run
};

struct ModuleCall {
  std::shared_ptr<ModuleCall> parent;
  std::shared_ptr<const ModuleHooks> hooks;
  int depth = 0;
};

// The innermost call of the thread that has hooks, or null.
const std::shared_ptr<ModuleCall>& current_module_call();

// Opens a call for its lifetime. finish() runs after_forward; leaving without it (an exception)
// only closes the region.
class ModuleCallScope {
 public:
  explicit ModuleCallScope(const std::shared_ptr<const ModuleHooks>& hooks);
  ~ModuleCallScope();
  ModuleCallScope(const ModuleCallScope&) = delete;
  ModuleCallScope& operator=(const ModuleCallScope&) = delete;
  void finish();

 private:
  std::shared_ptr<ModuleCall> call_;
  std::shared_ptr<ModuleCall> previous_;
};

}  // namespace tessera
