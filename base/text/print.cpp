// Writes to descriptors and to stdout.
#include "base/text/print.h"

#include <unistd.h>

#include <cerrno>

namespace tessera {
namespace {

void write_raw(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t got = ::write(descriptor, text.data(), text.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(got));
  }
}

}  // namespace

void print_text(std::string_view text) {
  fmt::print(stdout, "{}", printable_lines(text));
}

void flush_standard_output() {
  // An error comes up where the program ends, which flushes once more.
  (void)std::fflush(stdout);
}

void write_text(int descriptor, std::string_view text) noexcept {
  try {
    write_raw(descriptor, printable_lines(text));
  } catch (...) {  // no memory for the text: it is lost
  }
}

void redraw_line(int descriptor, std::string_view text) noexcept {
  try {
    write_raw(descriptor, fmt::format("\r{}\x1b[K", printable(text)));
  } catch (...) {  // as above
  }
}

void print_data(std::string_view data) {
  if (::isatty(STDOUT_FILENO) == 1) return print_text(data);
  fmt::print(stdout, "{}", data);
}

}  // namespace tessera
