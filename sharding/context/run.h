// The frame of a program's main().
#pragma once

#include <functional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tessera {

namespace detail {
int run_main(const std::function<int()>& program, std::string_view before_logic_errors = "");
}

// Returns the result of main(): runs `program`, a function without arguments that returns nothing
// or an exit code. An exception becomes one line on stderr, "tessera: error: ...", with the rank
// when there are several, or the launcher's line under `tessera launch`; and the exit code of its
// kind: an Error's code(), 6 for std::bad_alloc, else 1 (docs/errors.md). A standard output that
// cannot be written is such an error, unless its reader has left. So is the failure of an
// asynchronous save for whose end the program did not wait.
//
//   int main() { return ts::run([] { train(); }); }
//
// Without it an exception ends the program by std::terminate, and the launcher reports "killed by
// signal 6". The library itself installs no handlers, neither for std::terminate nor for signals:
// both belong to the program.
template <class Program>
requires std::is_invocable_v<Program&>
[[nodiscard]] int run(Program&& program) {
  if constexpr (std::is_void_v<std::invoke_result_t<Program&>>) {
    return detail::run_main([&program] {
      program();
      return 0;
    });
  } else {
    return detail::run_main([&program] { return static_cast<int>(program()); });
  }
}

}  // namespace tessera
