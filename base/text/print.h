// All that the product prints, made safe for a terminal. tests/tidiness forbids other ways.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/text/printable.h"

namespace tessera {

// Texts of several lines: printable_lines() of them.
void print_text(std::string_view text);  // to stdout; throws std::system_error if that fails
// Writes what print_text() and print_data() have kept back, before others write there.
void flush_standard_output();
// In one write, so that the lines of several ranks do not mix. A program goes on when its terminal
// is gone, so a failure is not an error.
void write_text(int descriptor, std::string_view text) noexcept;
// Replaces the line that the cursor is in; an empty text clears it.
void redraw_line(int descriptor, std::string_view text) noexcept;
// The result of a program, such as the text of a language model: print_text() on a terminal, but a
// file or a pipe gets every byte.
void print_data(std::string_view data);

namespace detail {

// Names and other strings become one line: only the format itself may break lines.
template <class T>
decltype(auto) shown(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return printable(value);
  } else {
    return (value);
  }
}

template <class T>
using Shown = std::remove_cvref_t<decltype(shown(std::declval<const T&>()))>;

template <class... T>
std::string format_shown(fmt::string_view format, const T&... values) {
  return [&](const auto&... safe) {
    return fmt::vformat(format, fmt::make_format_args(safe...));
  }(shown(values)...);
}

}  // namespace detail

template <class... T>
void print_out(fmt::format_string<detail::Shown<T>...> format, const T&... values) {
  print_text(detail::format_shown(format, values...));
}

// To stderr, as write_text().
template <class... T>
void print_err(fmt::format_string<detail::Shown<T>...> format, const T&... values) noexcept {
  constexpr int descriptor = 2;
  try {
    write_text(descriptor, detail::format_shown(format, values...));
  } catch (...) {  // no memory for the line: it is lost
  }
}

}  // namespace tessera
