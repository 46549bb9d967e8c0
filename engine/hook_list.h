// Functions that a program registers, to be called at some point, and removes again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace tessera {

// Removes one hook. Dropping the handle leaves the hook in place.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  // Has no effect the second time, or if the owner of the hook is gone.
  void remove() {
    if (const std::function<void()> take_away = std::exchange(remove_, nullptr)) take_away();
  }

 private:
  std::function<void()> remove_;
};

// The hooks of one kind, in the order in which they were added.
template <class Function>
class HookList {
 public:
  HookHandle add(Function hook) {
    if (!hooks_) hooks_ = std::make_shared<Hooks>();
    const std::uint64_t number = hooks_->next++;
    hooks_->by_number.emplace(number, std::make_shared<Function>(std::move(hook)));
    return HookHandle([weak = std::weak_ptr<Hooks>(hooks_), number] {
      if (const std::shared_ptr<Hooks> hooks = weak.lock()) hooks->by_number.erase(number);
    });
  }
  [[nodiscard]] bool empty() const { return !hooks_ || hooks_->by_number.empty(); }
  // Runs the hooks that exist at the start: a hook may add or remove hooks, including itself.
  template <class... Args>
  void run(Args&&... args) const {
    if (!hooks_) return;
    std::vector<std::shared_ptr<Function>> now;
    for (const auto& [number, hook] : hooks_->by_number) now.push_back(hook);
    for (const auto& hook : now) (*hook)(args...);
  }

 private:
  struct Hooks {
    std::map<std::uint64_t, std::shared_ptr<Function>> by_number;
    std::uint64_t next = 0;
  };
  std::shared_ptr<Hooks> hooks_;  // null: there never was a hook
};

}  // namespace tessera
