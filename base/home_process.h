// Threads, and memory that several processes share, belong to the process that started them. fork()
// copies every object but only one thread. A copy that waits for another thread waits forever, and
// a copy that writes into shared memory writes in its parent's name.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

namespace tessera {

// Remembers the process in which it was made. The check costs one load.
class HomeProcess {
 public:
  HomeProcess();
  // True if this process is a fork()ed copy of that process.
  [[nodiscard]] bool left() const noexcept;
  // Throws std::logic_error in a fork()ed copy; `what` names the operation that does not work
  // there.
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

// A shared object that only its own process destroys; a fork()ed copy is never destroyed.
template <class T, class... Arguments>
std::shared_ptr<T> make_shared_at_home(Arguments&&... arguments) {
  auto object = std::make_unique<T>(std::forward<Arguments>(arguments)...);
  return {object.release(), [home = HomeProcess()](T* owned) {
            const std::unique_ptr<T> owner(home.left() ? nullptr : owned);
          }};
}

}  // namespace tessera
