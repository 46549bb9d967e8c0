// The functions that Jinja and Python bring along.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/chat/jinja/interpreter.h"
#include "tokenizers/chat/values/object.h"

namespace tessera::tokenizers::jinja {

using Function = Value (*)(Interpreter& interpreter, const Value& subject, Arguments arguments);
using TestFunction = bool (*)(Interpreter& interpreter, const Value& subject, Arguments arguments);

struct NamedFunction {
  std::string_view name;
  Function function;
};

// Null if there is none of this name.
Function find_filter(std::string_view name);
Function find_text_filter(std::string_view name);
TestFunction find_test(std::string_view name);
// A method of Python's types.
Function find_method(const Value& subject, std::string_view name);
// A method that changes its object, which a template must not.
bool is_changing_method(const Value& subject, std::string_view name);

// range, dict, namespace, cycler, joiner, raise_exception and strftime_now. The time is UTC, in
// seconds since 1970.
Interpreter::Variables global_functions(Interpreter& interpreter, std::int64_t now);

// The arguments of a call by their parameters.
class Parameters {
 public:
  // Refuses arguments that `names` do not have.
  Parameters(Interpreter& interpreter, Arguments arguments,
             std::initializer_list<std::string_view> names);
  // Null if it was not given.
  [[nodiscard]] const Value* operator[](std::size_t index) const {
    return given_[index] ? &values_[index] : nullptr;
  }
  [[nodiscard]] const Value& required(std::size_t index) const;
  [[nodiscard]] bool truth(std::size_t index, bool otherwise) const;
  [[nodiscard]] std::int64_t integer(std::size_t index, std::int64_t otherwise) const;
  // A text; None is `otherwise`.
  [[nodiscard]] std::string text(std::size_t index, const std::string& otherwise) const;
  [[nodiscard]] std::string required_text(std::size_t index) const;
  // It is given and not None.
  [[nodiscard]] bool has_text(std::size_t index) const;

 private:
  Interpreter& interpreter_;
  std::vector<std::string_view> names_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

}  // namespace tessera::tokenizers::jinja
