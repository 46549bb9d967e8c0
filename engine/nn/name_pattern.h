// Regular expressions that choose modules and parameters by their names.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tessera {

// An expression in PCRE2's syntax, which includes that of Python's `re` and of ECMAScript, so
// expressions of PEFT and Accelerate keep their meaning. Expressions come from recipes and
// adapters' files, so the time of compilation and matching is bounded for any input. Copies share
// the compiled expression; any number of threads may match.
class NamePattern {
 public:
  // Throws Error(configuration) that begins with `where` ("LoRA:") if it is not a regular
  // expression, or has more than 16384 bytes.
  NamePattern(std::string_view expression, std::string_view where);

  // True if it matches the whole name. Throws Error(configuration) if this takes more than a
  // million steps.
  [[nodiscard]] bool matches(std::string_view name) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace tessera
