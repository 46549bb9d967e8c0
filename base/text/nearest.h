// "Did you mean": the candidate nearest to a misspelt word.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// The number of insertions, deletions, substitutions and swaps of neighbours between two words.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The nearest candidate, or an empty text if none is near enough to be likely. Case, hyphens and
// underscores do not count.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "; did you mean X?", or empty text.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tessera
