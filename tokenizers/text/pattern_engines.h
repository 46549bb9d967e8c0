// The engines that match patterns, and the part of the syntax that both read alike.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizers/text/pattern.h"

namespace tessera::tokenizers {

// The working memory of a match.
class PatternSearch {
 public:
  virtual ~PatternSearch() = default;
  virtual bool find(std::string_view text, std::size_t from, Pattern::Matcher::Match& match) = 0;
};

// A compiled expression.
class PatternCode {
 public:
  virtual ~PatternCode() = default;
  // The code must outlive the search.
  [[nodiscard]] virtual std::unique_ptr<PatternSearch> search() const = 0;
};

std::unique_ptr<PatternCode> compile_with_oniguruma(std::string_view expression,
                                                    const std::string& source);
// Only for expressions of the shared syntax.
std::unique_ptr<PatternCode> compile_with_pcre2(std::string_view expression,
                                                const std::string& source);

// True if the expression has nothing but this: characters; \r \n \t \s \S, escaped punctuation,
// \p{..} and \P{..} with a general category; classes of these and of ranges, without a class or &&
// inside; ? * + and {n}, {n,}, {n,m} behind one of them, without another quantifier behind that;
// | and (?: ) (?= ) (?! ), of which (?: ) may be followed by ?; and the contractions of English
// that GPT's patterns match in any case. Words, digits, anchors, captures, options and all else may
// mean something else in the other engine. (The Unicode editions of the two libraries can differ in
// characters that only one knows.)
bool is_shared_syntax(std::string_view expression);

// The expression for a message: quoted, and cut if it is long.
std::string shown_pattern(std::string_view expression);

}  // namespace tessera::tokenizers
