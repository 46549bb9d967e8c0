// TESSERA_CUDA_MEMORY.
#include "engine/cuda/settings.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace tessera::cuda {
namespace {

constexpr const char* memory_variable = "TESSERA_CUDA_MEMORY";

// Parses all of `text` as a number.
template <class Number>
std::optional<Number> parse(std::string_view text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || last != end) return std::nullopt;
  return value;
}

// Parses bytes with an optional M or G.
std::optional<std::size_t> parse_bytes(std::string_view text) {
  int shift = 0;
  if (text.ends_with('M') || text.ends_with('m')) shift = 20;
  if (text.ends_with('G') || text.ends_with('g')) shift = 30;
  if (shift != 0) text.remove_suffix(1);
  const auto value = parse<std::size_t>(text);
  if (!value || *value == 0 || *value > (SIZE_MAX >> shift)) return std::nullopt;
  return *value << shift;
}

}  // namespace

Settings read_settings() {
  Settings settings;
  const char* text = std::getenv(memory_variable);
  if (text == nullptr) return settings;
  if (std::string_view(text).find('.') == std::string_view::npos) {
    settings.memory_bytes = parse_bytes(text);
    if (settings.memory_bytes) return settings;
  } else if (const auto fraction = parse<double>(text);
             fraction && *fraction > 0 && *fraction <= 1) {
    settings.memory_fraction = *fraction;
    return settings;
  }
  fail(ErrorCode::configuration,
       "{} is \"{}\"; give bytes (8000000000, 512M, 40G) or a fraction of the free memory (0.5)",
       memory_variable, text);
}

}  // namespace tessera::cuda
