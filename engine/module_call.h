// A module's forward as a region of the tape. Regions nest like the calls; backward passes through
// them in reverse.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error_place.h"

namespace tessera {

// The place of a module in its tree, for messages. A graph may outlive the module.
struct ModulePosition {
  std::string name;        // in its parent; empty: a root
  std::string class_name;  // empty until the module has been registered or called
  std::weak_ptr<const ModulePosition> parent;
  [[nodiscard]] std::string path() const;      // "h.0.mlp"; empty: a root
  [[nodiscard]] std::string describe() const;  // "h.0.mlp, of class Mlp"
};

// Marks, during its lifetime, that the thread is inside a module's call, or in the backward of an
// op from that call. Errors then name the module. A null position means that the place is unknown.
// The class is final: nothing derives from it.
class ModulePlace final : public ErrorPlace {  // NOLINT(cppcoreguidelines-virtual-class-destructor)
 public:
  enum class Pass : std::uint8_t { forward, backward };
  explicit ModulePlace(std::shared_ptr<const ModulePosition> position, Pass pass = Pass::forward);
  ~ModulePlace();
  ModulePlace(const ModulePlace&) = delete;
  ModulePlace& operator=(const ModulePlace&) = delete;
  // The position of the thread's innermost place, or null.
  static std::shared_ptr<const ModulePosition> current();

 private:
  [[nodiscard]] std::string describe() const override;

  std::shared_ptr<const ModulePosition> position_;
  Pass pass_;
  const ModulePlace* outer_;
};

struct ModuleHooks;

struct ModuleCall {
  std::shared_ptr<ModuleCall> parent;
  std::shared_ptr<const ModuleHooks> hooks;
  int depth = 0;
  std::uint64_t number = 0;  // of this call among the thread's calls, from 1
  bool recompute = false;    // a forward in the middle of a backward
  // Run before after_forward, which may free the parameters. An op that saved a parameter by
  // reference, for a backward inside this call, copies it here for a backward outside.
  std::vector<std::function<void()>> before_leaving;
};

// The functions that a schedule (sharding) attaches to a module's calls. A module has one such set;
// programs have hooks of their own (nn::Module::register_forward_hook). Empty functions are
// skipped. All run on the rank's compute stream (its thread); an exception ends the forward or
// backward.
struct ModuleHooks {
  using Hook = std::function<void(const ModuleCall&)>;
  std::string owner = "a schedule";  // owner of the hooks, for messages
  Hook before_forward;
  Hook after_forward;
  Hook abandon_forward;  // instead of after_forward if an exception left the call; never throws
  Hook expect_backward;  // a backward begins that will reach the call; called in the order of
                         // entering
  Hook before_backward;  // backward reaches the first node of the call
  Hook after_backward;   // no node of the call remains to run
};

// The thread's innermost call that has hooks, or null.
const std::shared_ptr<ModuleCall>& current_module_call();

// A call that is open during its lifetime. finish() runs after_forward; leaving without it (an
// exception) closes the region.
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
  bool finished_ = false;
};

// The calls of a function that backward will run again (engine/recompute.h), in the order in which
// they began. The two runs count as one call each: one before_backward, one after_backward.
using ModuleCalls = std::vector<std::shared_ptr<ModuleCall>>;

// During its lifetime calls are also recorded in `made`.
class ModuleCallRecording {
 public:
  explicit ModuleCallRecording(ModuleCalls& made);
  ~ModuleCallRecording();
  ModuleCallRecording(const ModuleCallRecording&) = delete;
  ModuleCallRecording& operator=(const ModuleCallRecording&) = delete;

 private:
  ModuleCalls* previous_;
};

// During its lifetime the thread is inside `parent`, and module calls reuse those of `made` in
// order instead of new ones. Throws a logic_error if other modules are called.
class ModuleCallReplay {
 public:
  ModuleCallReplay(std::shared_ptr<ModuleCall> parent, const ModuleCalls& made);
  ~ModuleCallReplay();
  ModuleCallReplay(const ModuleCallReplay&) = delete;
  ModuleCallReplay& operator=(const ModuleCallReplay&) = delete;
  [[nodiscard]] bool complete() const { return next_ == made_.size(); }

 private:
  friend class ModuleCallScope;
  std::shared_ptr<ModuleCall> next(const std::shared_ptr<const ModuleHooks>& hooks);

  const ModuleCalls& made_;
  std::size_t next_ = 0;
  std::shared_ptr<ModuleCall> outer_call_;
  ModuleCallReplay* outer_replay_;
};

}  // namespace tessera
