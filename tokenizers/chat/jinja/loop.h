// The variable `loop` inside a loop.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizers/chat/jinja/interpreter.h"
#include "tokenizers/chat/jinja/syntax.h"
#include "tokenizers/chat/values/object.h"

namespace tessera::tokenizers::jinja {

class Loop final : public Object {
 public:
  // The statement and the scope must outlive it.
  Loop(const Statement& statement, std::vector<Value> items, Scope& around, int depth)
      : items_here(std::move(items)), statement_(statement), around_(around), depth_(depth) {}

  [[nodiscard]] std::string_view type() const override { return "loop"; }
  [[nodiscard]] Value attribute(Interpreter& interpreter, const std::string& name) override;
  // loop(items) of a recursive loop: the output of its body on these.
  [[nodiscard]] bool is_callable() const override { return true; }
  [[nodiscard]] Value call(Interpreter& interpreter, Arguments arguments) override;
  // loop.changed(..): whether the arguments differ from those of the call before.
  [[nodiscard]] bool changed(Interpreter& interpreter, Value values);

  std::vector<Value> items_here;
  std::size_t index = 0;

 private:
  const Statement& statement_;
  Scope& around_;
  int depth_;
  std::optional<Value> last_;
};

}  // namespace tessera::tokenizers::jinja
