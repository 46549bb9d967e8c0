// The member `pattern` of several elements: {"String": text} or {"Regex": expression}.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizers/text/pattern.h"

namespace tessera::tokenizers {

// Any number of threads may use it, each with its own Search.
class PatternField {
 public:
  // `literal` has at least one character.
  explicit PatternField(std::string literal) : literal_(std::move(literal)) {}
  explicit PatternField(Pattern pattern) : pattern_(std::move(pattern)) {}

  class Search {
   public:
    explicit Search(const PatternField& field) : field_(field) {
      if (field.pattern_) matcher_.emplace(*field.pattern_);
    }
    // The first match that begins at `from` or later.
    bool find(std::string_view text, std::size_t from, Pattern::Matcher::Match& match);

   private:
    const PatternField& field_;
    std::optional<Pattern::Matcher> matcher_;
  };

  // The text itself if nothing matches, otherwise `buffer`.
  std::string_view replace_all(std::string_view text, std::string_view content,
                               std::string& buffer) const;

 private:
  friend class Search;
  std::string literal_;
  std::optional<Pattern> pattern_;
};

PatternField pattern_field(const nlohmann::json& json, const std::string& source);

}  // namespace tessera::tokenizers
