// Units of bytes.
#include "base/text/byte_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace tessera {
namespace {

constexpr std::string_view prefixes = "kMGTP";

// 1000 or 1024 to the power of the unit's prefix; 0 for an unknown unit.
double factor_of(std::string_view unit) {
  if (unit.empty() || unit == "B") return 1;
  const char letter = unit.front() == 'K' ? 'k' : unit.front();
  const std::size_t power = prefixes.find(letter);
  if (power == std::string_view::npos) return 0;
  const std::string_view rest = unit.substr(1);
  const double base = rest == "B" ? 1000 : rest == "iB" ? 1024 : 0;
  return base == 0 ? 0 : std::pow(base, static_cast<double>(power + 1));
}

}  // namespace

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(stop - text.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  const double bytes = number * factor_of(unit);
  constexpr double most = 9e18;
  if (!(bytes >= 1) || bytes > most) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::uint64_t read_memory_size(const std::string& option, const std::string& text) {
  const auto bytes = parse_bytes(text);
  TESSERA_CHECK(bytes.has_value(), ErrorCode::usage,
                "{} {}: must be a number of bytes, as in 80GB, 79.2GiB or 1e11", option, text);
  constexpr std::uint64_t least_without_unit = std::uint64_t{1} << 20;
  const bool has_unit = text.ends_with('B');
  TESSERA_CHECK(has_unit || *bytes >= least_without_unit, ErrorCode::usage,
                "{0} {1}: the unit is missing, as in {1}GB or {1}GiB; {1} bytes are {1}B", option,
                text);
  return *bytes;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 7> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < units.size(); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, units[unit]);
}

}  // namespace tessera
