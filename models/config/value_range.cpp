// Ranges in words.
#include "models/config/value_range.h"

#include <fmt/format.h>

namespace tessera::models {

std::string Range::text() const {
  std::string text;
  if (low) text = fmt::format("{} {}", low_excluded ? "above" : "at least", *low);
  if (high) {
    text += fmt::format("{}{} {}", text.empty() ? "" : " and ", high_excluded ? "below" : "at most",
                        *high);
  }
  return text;
}

bool Range::holds(double value) const {
  if (low && (low_excluded ? value <= *low : value < *low)) return false;
  return !(high && (high_excluded ? value >= *high : value > *high));
}

}  // namespace tessera::models
