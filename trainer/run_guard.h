// Refuses calls of a run that would go on with wrong numbers: on another thread, without its
// module, or after a call that ended half way.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "engine/nn/module.h"

namespace tessera {

class RunGuard {
 public:
  explicit RunGuard(const nn::Module& module) : module_(module.life()) {}

  // What a call needs after another one has failed: everything, or the last step's parameters and
  // position alone.
  enum class Needs { everything, last_step };
  // Throws std::logic_error if the call cannot be made.
  void require(std::string_view call, Needs needs = Needs::everything) const;

  // Runs the call. If it throws, later calls are refused; one that needs the last step alone leaves
  // it unchanged.
  template <class Work>
  auto run(std::string_view call, Needs needs, Work&& work) {
    require(call, needs);
    try {
      return work();
    } catch (const std::exception& error) {
      fail(call, needs, error.what());
      throw;
    } catch (...) {
      fail(call, needs, "an exception other than std::exception");
      throw;
    }
  }
  // The call that is about to fail leaves all of the last step unchanged, on every rank.
  void keep_last_step() { has_last_step_ = true; }

 private:
  void fail(std::string_view call, Needs needs, std::string_view reason);

  std::weak_ptr<const void> module_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::string failure_;  // the first failed call and its reason; empty: none has failed
  bool has_last_step_ = false;
};

}  // namespace tessera
