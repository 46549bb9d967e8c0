// Threads, and memory that several processes share, belong to the process that started them. A
// process made by fork() has a copy of every object, but one thread: a copy that waits for a
// thread waits for ever, and one that writes into shared memory speaks in its parent's name.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

namespace tessera {

// Remembers the process in which it was made. To look costs a load.
class HomeProcess {
 public:
  HomeProcess();
  // Whether this process is a fork()ed copy of that one.
  [[nodiscard]] bool left() const noexcept;
  // Throws std::logic_error where it is; `what` cannot be done in the copy.
  void require(std::string_view what) const {
    if (left()) refuse(what);
  }
  // Throws std::logic_error in a process that was fork()ed after one of these was made in its
  // parent, that is, after the library began to use threads or shared memory there.
  static void require_unused_before_fork(std::string_view what);

 private:
  [[noreturn]] static void refuse(std::string_view what);

  unsigned generation_;
};

// A shared object that must end in its own process only: a fork()ed copy is never destroyed.
template <class T, class... Arguments>
std::shared_ptr<T> make_shared_at_home(Arguments&&... arguments) {
  auto object = std::make_unique<T>(std::forward<Arguments>(arguments)...);
  return {object.release(), [home = HomeProcess()](T* owned) {
            const std::unique_ptr<T> owner(home.left() ? nullptr : owned);
          }};
}

}  // namespace tessera
