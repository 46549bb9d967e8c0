// Outcomes as texts.
#include "comm/outcome.h"

#include <fmt/format.h>
#include <charconv>

namespace tessera::comm {

std::string encode_success(std::uint64_t value) {
  return fmt::format("ok {}", value);
}

std::string encode_error(const Error& error) {
  return fmt::format("error {} {}", static_cast<int>(error.code()), error.what());
}

std::uint64_t decode_result(std::string_view text) {
  std::uint64_t value = 0;
  const auto number = [&](std::size_t begin) {
    return std::from_chars(text.data() + begin, text.data() + text.size(), value);
  };
  if (text.starts_with("ok ")) {
    number(3);
    return value;
  }
  TESSERA_REQUIRE(text.starts_with("error "), "not an outcome: '{}'", text);
  const auto [end, status] = number(6);
  throw Error(static_cast<ErrorCode>(value),
              std::string(text.substr(static_cast<std::size_t>(end - text.data()) + 1)));
}

}  // namespace tessera::comm
