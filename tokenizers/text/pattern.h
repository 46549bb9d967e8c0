// Regular expressions of tokenizer files, by PCRE2's compiler to machine code.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tessera::tokenizers {

// Files are written for Oniguruma. Where PCRE2 means something else by the same words (\s, \d, \w
// and their negations), the words are replaced by what Oniguruma means. Matches from any number of
// threads.
class Pattern {
 public:
  // Error(data) beginning with `source` when PCRE2 does not take the expression.
  Pattern(std::string_view expression, const std::string& source);
  static Pattern literal(std::string_view text, const std::string& source);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // A place to match in, of one thread.
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
