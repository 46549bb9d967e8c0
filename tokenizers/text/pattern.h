// Regular expressions of tokenizer files.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tessera::tokenizers {

class PatternCode;
class PatternSearch;

// An expression of Oniguruma, the engine of the package `tokenizers`, with the meaning that it has
// there. Oniguruma matches it, or PCRE2, which is faster, if the expression is of the part of the
// syntax in which both find the same matches (pattern_engines.h). Any number of threads may match.
class Pattern {
 public:
  // `source`, the file and the place in it, begins every message. Error(data) with the expression
  // if Oniguruma does not accept it.
  Pattern(std::string_view expression, const std::string& source);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // The working memory of a match, used by one thread. The pattern must outlive it.
  class Matcher {
   public:
    explicit Matcher(const Pattern& pattern);
    ~Matcher();
    Matcher(const Matcher&) = delete;
    Matcher& operator=(const Matcher&) = delete;
    struct Match {
      std::size_t begin = 0;
      std::size_t end = 0;
    };
    // The first match in valid UTF-8 that begins at `from` or later. Error(data) with the
    // expression if the search takes too many steps or too much memory.
    bool find(std::string_view text, std::size_t from, Match& match);

   private:
    std::unique_ptr<PatternSearch> search_;
  };

 private:
  friend class Matcher;
  std::unique_ptr<PatternCode> code_;
};

}  // namespace tessera::tokenizers
