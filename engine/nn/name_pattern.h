// Regular expressions that choose modules and parameters by their names.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tessera {

// An expression in PCRE2's words, which have those of Python's `re` and of ECMAScript among them:
// what PEFT and Accelerate write is read as they mean it. Expressions come from recipes and from
// adapters' files, so that reading and matching end soon whatever they say. Copies share the
// compiled expression; any number of threads may match.
class NamePattern {
 public:
  // Error(configuration) that begins with `where` ("LoRA:") if it is no regular expression, or has
  // more than 16384 bytes.
  NamePattern(std::string_view expression, std::string_view where);

  // Whether it matches the whole name. Error(configuration) where it takes more than a million
  // steps to say.
  [[nodiscard]] bool matches(std::string_view name) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace tessera
