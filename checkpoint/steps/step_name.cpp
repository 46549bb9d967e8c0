// Composes and parses names of steps.
#include "checkpoint/steps/step_name.h"

#include <fmt/format.h>

#include <charconv>

namespace tessera::checkpoint {
namespace {

constexpr std::string_view step_prefix = "step-";

}  // namespace

std::string step_name(std::int64_t step) {
  return fmt::format("{}{}", step_prefix, step);
}

std::optional<std::int64_t> parse_step_name(std::string_view name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  const std::string_view digits = name.substr(step_prefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return step >= 0 && name == step_name(step) ? std::optional(step) : std::nullopt;
}

}  // namespace tessera::checkpoint
