// Texts of the emulated runtime on stderr. CUDA's error codes are terse; the text explains the
// error once, where it is found.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

namespace tessera::emulator {

template <class... Arguments>
void print_line(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  const std::string line =
      "emulator: " + fmt::format(format, std::forward<Arguments>(arguments)...) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

template <class... Arguments>
[[noreturn]] void end_program(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  print_line(format, std::forward<Arguments>(arguments)...);
  std::abort();
}

}  // namespace tessera::emulator
