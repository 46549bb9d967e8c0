// Values with a behaviour of their own: functions, macros, namespaces, loops, generators.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizers/chat/values/value.h"

namespace tessera::tokenizers::jinja {

class Interpreter;

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Owned by the interpreter until the rendering ends.
class Object {
 public:
  Object() = default;
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  [[nodiscard]] virtual std::string_view type() const = 0;
  // An attribute by its name; undefined if it has none.
  [[nodiscard]] virtual Value attribute(Interpreter& interpreter, const std::string& name);
  [[nodiscard]] virtual bool is_callable() const { return false; }
  [[nodiscard]] virtual Value call(Interpreter& interpreter, Arguments arguments);
  // True for what a loop can run over; then items() gives its values, a generator's only once.
  [[nodiscard]] virtual bool is_iterable() const { return false; }
  [[nodiscard]] virtual std::vector<Value> items(Interpreter& interpreter);
  [[nodiscard]] virtual bool truth() const { return true; }
  // Its text, of an object that is one.
  [[nodiscard]] virtual const std::string* text() const { return nullptr; }
  // False if it has no such attribute to set.
  [[nodiscard]] virtual bool set(const std::string& /*name*/, const Value& /*value*/) {
    return false;
  }
};

// The lazy results of filters like map and select: they are there once, have no length and are true
// even if there is none.
class Generator final : public Object {
 public:
  explicit Generator(std::vector<Value> items) : items_(std::move(items)) {}
  [[nodiscard]] std::string_view type() const override { return "generator"; }
  [[nodiscard]] bool is_iterable() const override { return true; }
  [[nodiscard]] std::vector<Value> items(Interpreter& interpreter) override;

 private:
  std::vector<Value> items_;
};

// The result of the filter `safe`: Python's Markup, a text with operators of its own, which are
// refused here.
class Markup final : public Object {
 public:
  explicit Markup(std::string text) : text_(std::move(text)) {}
  [[nodiscard]] std::string_view type() const override { return "safe text"; }
  [[nodiscard]] bool truth() const override { return !text_.empty(); }
  [[nodiscard]] const std::string* text() const override { return &text_; }

 private:
  std::string text_;
};

}  // namespace tessera::tokenizers::jinja
