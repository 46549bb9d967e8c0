// "Did you mean": the candidate nearest to a misspelt word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The nearest candidate, or an empty text when none is near enough to be what was meant. Case,
// hyphens and underscores do not count.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "; did you mean X?" or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tessera::cli
