// Runs a template. It reads nothing but its variables, and its work and memory are bounded.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizers/chat/jinja/syntax.h"
#include "tokenizers/chat/values/object.h"
#include "tokenizers/chat/values/value.h"

namespace tessera::tokenizers::jinja {

// A range of bytes of the output.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const Span&) const = default;
};

// Objects and scopes stay until the rendering ends, so that each counts for its memory.
inline constexpr std::int64_t object_steps = 16;

struct Limits {
  std::int64_t steps = 20'000'000;             // expressions, statements and items
  std::int64_t bytes = std::int64_t{1} << 30;  // of all texts that are made on the way
  std::int64_t longest = 64 << 20;             // of one text, the output included
  int depth = 800;                             // of expressions, statements and macros
};

// The variables of a block, and the block around it.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> names;

  [[nodiscard]] const Value* find(const std::string& name) const;  // here and around
  void set(const std::string& name, Value value);                  // here
};

// One rendering. Errors are Error(data) and begin with `source` and the line.
class Interpreter {
 public:
  Interpreter(std::string source, const Limits& limits)
      : source_(std::move(source)), limits_(limits) {}

  using Variables = std::vector<std::pair<std::string, Value>>;
  std::string run(const Body& body, Variables variables);
  // The output of {% generation %}, in order. They are noted where `notes` is set before run().
  bool notes_generations = false;
  [[nodiscard]] const std::vector<Span>& generations() const { return generations_; }

  // For built-in functions.
  template <class... Parts>
  [[noreturn]] void refuse(fmt::format_string<Parts...> format, Parts&&... parts) const {
    fail(ErrorCode::data, "{}, line {}: {}", source_, line_,
         fmt::format(format, std::forward<Parts>(parts)...));
  }
  void charge(std::int64_t steps);
  void charge_bytes(std::size_t bytes);  // before a text of this length is made
  void charge_growth(std::size_t length, std::size_t added);  // of a text that is made in parts
  bool same(const Value& a, const Value& b);                  // Python's ==
  Value sequence(std::vector<Value> items, SequenceKind kind = SequenceKind::list);
  Value mapping(std::vector<std::pair<Value, Value>> items);
  Value generator(std::vector<Value> items);
  template <class T, class... Parts>
  Value make(Parts&&... parts) {
    charge(object_steps);
    objects_.push_back(std::make_unique<T>(std::forward<Parts>(parts)...));
    return objects_.back().get();
  }
  // The values that a loop over it has. Refuses what cannot be looped over.
  std::vector<Value> items_of(const Value& value);
  Value attribute(const Value& owner, const std::string& name);
  Value item(const Value& owner, const Value& key);
  Value call(const Value& callee, Arguments arguments);
  Value filter(const std::string& name, const Value& subject, Arguments arguments);
  bool test(const std::string& name, const Value& subject, Arguments arguments);
  bool contains(const Value& container, const Value& one);
  Value add(const Value& a, const Value& b);
  Value times(const Value& a, const Value& b);
  Value remainder(const Value& a, const Value& b) { return arithmetic("%", a, b); }
  int order(const Value& a, const Value& b);  // refuses values that have none
  std::string text_of(const Value& value);    // str(value)
  std::string json_of(const Value& value, Arguments arguments);

  // For the interpreter's own objects.
  void execute(const Body& body, Scope& scope);
  std::string captured(const Body& body, Scope& scope);
  Value evaluate(const Expression& expression, Scope& scope);
  Scope& scope_in(Scope* parent);
  void run_loop(const Statement& loop, std::vector<Value> items, Scope& around, int depth);
  std::string loop_output(const Statement& loop, std::vector<Value> items, Scope& around,
                          int depth);
  // The body of a macro or of a call, with its parameters.
  std::string call_body(const Statement& function, Scope& closure, const std::string& name,
                        Arguments arguments);

 private:
  enum class Flow : std::uint8_t { normal, leave, next };
  class Level;

  Flow flow(const Body& body, Scope& scope);
  Flow flow(const Statement& statement, Scope& scope);
  Flow condition(const Statement& statement, Scope& scope);
  void loop(const Statement& statement, Scope& scope);
  void call_block(const Statement& statement, Scope& scope);
  void generation(const Statement& statement, Scope& scope);
  void assign(const Expression& target, Value value, Scope& scope);
  Value filtered(const Expression& chain, const Value& subject, Scope& scope);
  void write(const std::string& text);

  Value name_value(const Expression& expression, Scope& scope);
  Value mapping_value(const Expression& expression, Scope& scope);
  Value call_value(const Expression& expression, Scope& scope, const Value* caller);
  Value slice_value(const Expression& expression, Scope& scope);
  Value comparison_value(const Expression& expression, Scope& scope);
  Value sign_value(const Expression& expression, Scope& scope);
  Value arithmetic(const std::string& sign, const Value& a, const Value& b);
  Value quotient(const std::string& sign, const Value& a, const Value& b);
  Value whole_quotient(const std::string& sign, std::int64_t a, std::int64_t b);
  Value raised(const Value& a, const Value& b);
  bool compared(const std::string& sign, const Value& a, const Value& b);
  Arguments arguments_of(const Expression& expression, Scope& scope);
  void require_defined(const Value& value) const;

  std::string source_;
  Limits limits_;
  int line_ = 1;
  int depth_ = 0;
  std::int64_t steps_ = 0;
  std::int64_t bytes_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<std::string> outputs_;
  std::vector<Span> generations_;
};

}  // namespace tessera::tokenizers::jinja
