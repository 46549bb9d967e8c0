// Regular expressions of tokenizer files, compiled to machine code by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tessera::tokenizers {

// Files are written for Oniguruma. Escapes with another meaning in PCRE2 (\s, \d, \w and their
// negations) are replaced by Oniguruma's meaning. Any number of threads may match.
class Pattern {
 public:
  // Error(data) beginning with `source` if PCRE2 refuses the expression.
  Pattern(std::string_view expression, const std::string& source);
  static Pattern literal(std::string_view text, const std::string& source);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // The working memory of a match, used by one thread.
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
    // The first match in valid UTF-8 that begins at `from` or later.
    bool find(std::string_view text, std::size_t from, Match& match);

   private:
    struct State;
    const Pattern& pattern_;
    std::unique_ptr<State> state_;
  };

 private:
  friend class Matcher;
  struct Code;
  std::unique_ptr<Code> code_;
  std::string source_;
};

}  // namespace tessera::tokenizers
