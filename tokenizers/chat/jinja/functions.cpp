// Objects with attributes and calls: loops, namespaces, and the functions that every template has.
#include <ctime>
#include <optional>
#include <string_view>

#include "base/text/printable.h"
#include "tokenizers/chat/jinja/builtins.h"
#include "tokenizers/chat/jinja/loop.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers::jinja {
namespace {

constexpr std::int64_t longest_range = 100'000;  // Jinja's, of its sandbox

// A function with a name, bound to an object or to nothing.
template <class Body>
class BuiltIn final : public Object {
 public:
  explicit BuiltIn(Body body) : body_(std::move(body)) {}
  [[nodiscard]] std::string_view type() const override { return "function"; }
  [[nodiscard]] bool is_callable() const override { return true; }
  [[nodiscard]] Value call(Interpreter& interpreter, Arguments arguments) override {
    return body_(interpreter, std::move(arguments));
  }

 private:
  Body body_;
};

template <class Body>
Value function(Interpreter& interpreter, Body body) {
  return interpreter.make<BuiltIn<Body>>(std::move(body));
}

class Namespace final : public Object {
 public:
  [[nodiscard]] std::string_view type() const override { return "namespace"; }
  [[nodiscard]] Value attribute(Interpreter& interpreter, const std::string& name) override {
    const Value* const value = names_.find(name);
    return value != nullptr ? *value : Object::attribute(interpreter, name);
  }
  [[nodiscard]] bool set(const std::string& name, const Value& value) override {
    if (name.starts_with("_")) return false;
    names_.set(name, value);
    return true;
  }

 private:
  Scope names_;
};

// Gives its values in turn.
class Cycler final : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  [[nodiscard]] std::string_view type() const override { return "cycler"; }
  [[nodiscard]] Value attribute(Interpreter& interpreter, const std::string& name) override {
    if (name == "current") return items_[at_];
    if (name == "next") {
      return function(interpreter, [this](Interpreter&, const Arguments&) {
        const std::size_t at = at_;
        at_ = (at_ + 1) % items_.size();
        return items_[at];
      });
    }
    if (name == "reset") {
      return function(interpreter, [this](Interpreter&, const Arguments&) -> Value {
        at_ = 0;
        return None{};
      });
    }
    return Object::attribute(interpreter, name);
  }

 private:
  std::vector<Value> items_;
  std::size_t at_ = 0;
};

Value make_range(Interpreter& interpreter, const Arguments& arguments) {
  std::int64_t bounds[3] = {0, 0, 1};
  const std::size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty())
    interpreter.refuse("range takes 1 to 3 numbers");
  for (std::size_t i = 0; i < count; ++i) {
    const Value& one = arguments.positional[i];
    if (!one.is_integer()) interpreter.refuse("range takes whole numbers, not a {}", one.type());
    bounds[count == 1 ? 1 : i] = one.integer();
  }
  constexpr std::int64_t largest = std::int64_t{1} << 60;
  for (const std::int64_t bound : bounds) {
    if (bound > largest || bound < -largest) interpreter.refuse("range of too large numbers");
  }
  const auto [first, last, step] = bounds;
  if (step == 0) interpreter.refuse("range of step 0");
  const std::int64_t distance = step > 0 ? last - first : first - last;
  const std::int64_t stride = step > 0 ? step : -step;
  const std::int64_t length = distance > 0 ? (distance - 1) / stride + 1 : 0;
  if (length > longest_range) {
    interpreter.refuse("a range of {} numbers, and {} are allowed", length, longest_range);
  }
  std::vector<Value> items;
  for (std::int64_t i = 0; i < length; ++i) items.emplace_back(first + i * step);
  return interpreter.sequence(std::move(items), SequenceKind::range);
}

Value make_dict(Interpreter& interpreter, Arguments given) {
  const Arguments arguments = std::move(given);
  std::vector<std::pair<Value, Value>> items;
  if (arguments.positional.size() > 1) interpreter.refuse("dict takes one mapping");
  for (const Value& one : arguments.positional) {
    if (one.is_mapping()) {
      items = one.mapping().items;
      continue;
    }
    for (const Value& pair : interpreter.items_of(one)) {
      std::vector<Value> both = interpreter.items_of(pair);
      if (both.size() != 2) interpreter.refuse("dict takes pairs");
      items.emplace_back(std::move(both[0]), std::move(both[1]));
    }
  }
  for (const auto& [name, value] : arguments.named) items.emplace_back(name, value);
  return interpreter.mapping(std::move(items));
}

Value make_namespace(Interpreter& interpreter, Arguments arguments) {
  const Value from = make_dict(interpreter, std::move(arguments));
  Value made = interpreter.make<Namespace>();
  for (const auto& [name, value] : from.mapping().items) {
    if (!name.is_text() || !made.object()->set(name.text(), value)) {
      interpreter.refuse("a namespace has names that do not begin with an underscore");
    }
  }
  return made;
}

Value make_cycler(Interpreter& interpreter, Arguments arguments) {
  if (arguments.positional.empty()) interpreter.refuse("cycler takes at least one value");
  return interpreter.make<Cycler>(std::move(arguments.positional));
}

Value make_joiner(Interpreter& interpreter, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"sep"});
  return function(interpreter,
                  [separator = given.text(0, ", "), used = false](
                      Interpreter&, const Arguments&) mutable -> Value {
                    return std::exchange(used, true) ? separator : std::string();
                  });
}

// The message of the template's author, in any script. A long one loses its end.
std::string reason_of_template(std::string_view text) {
  constexpr std::size_t longest = 1000;
  if (text.size() <= longest) return printable(text);
  std::size_t end = longest;
  while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // within a character
  return printable(text.substr(0, end)) + "...";
}

Value raise_exception(Interpreter& interpreter, Arguments arguments) {
  const Parameters given(interpreter, std::move(arguments), {"message"});
  interpreter.refuse("the template refuses the conversation: {}",
                     reason_of_template(interpreter.text_of(given.required(0))));
}

Value format_time(Interpreter& interpreter, Arguments arguments, std::int64_t now) {
  const Parameters given(interpreter, std::move(arguments), {"format"});
  const std::string format = given.required_text(0);
  const auto seconds = static_cast<std::time_t>(now);
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) interpreter.refuse("no such time");
  char text[1024];
  // The format of a template goes to strftime as it is; the locale of the process is C.
  const std::size_t length = std::strftime(text, sizeof(text), (format + " ").c_str(), &parts);
  if (length == 0) interpreter.refuse("the format of a time is too long");
  std::string copy;
  return std::string(as_utf8({text, length - 1}, copy));
}

}  // namespace

Value Object::attribute(Interpreter& /*interpreter*/, const std::string& name) {
  return Value::missing(fmt::format("'{}' has no attribute '{}'", type(), name));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): overrides move it
Value Object::call(Interpreter& interpreter, Arguments /*arguments*/) {
  interpreter.refuse("a {} cannot be called", type());
}

std::vector<Value> Object::items(Interpreter& interpreter) {
  interpreter.refuse("a {} cannot be looped over", type());
}

std::vector<Value> Generator::items(Interpreter& /*interpreter*/) {
  return std::exchange(items_, {});
}

bool Loop::changed(Interpreter& interpreter, Value values) {
  const bool differs = !last_ || !interpreter.same(*last_, values);
  last_ = std::move(values);
  return differs;
}

Value Loop::attribute(Interpreter& interpreter, const std::string& name) {
  const auto at = static_cast<std::int64_t>(index);
  const auto length = static_cast<std::int64_t>(items_here.size());
  if (name == "index") return at + 1;
  if (name == "index0") return at;
  if (name == "revindex") return length - at;
  if (name == "revindex0") return length - at - 1;
  if (name == "first") return at == 0;
  if (name == "last") return at + 1 == length;
  if (name == "length") return length;
  if (name == "depth") return std::int64_t{depth_};
  if (name == "depth0") return std::int64_t{depth_ - 1};
  if (name == "previtem") {
    return index > 0 ? items_here[index - 1] : Value::missing("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < items_here.size() ? items_here[index + 1]
                                         : Value::missing("there is no next item");
  }
  if (name == "cycle") {
    return function(interpreter, [this](Interpreter& running, Arguments arguments) {
      if (arguments.positional.empty()) running.refuse("loop.cycle takes at least one value");
      return arguments.positional[index % arguments.positional.size()];
    });
  }
  if (name == "changed") {
    return function(interpreter, [this](Interpreter& running, Arguments arguments) -> Value {
      return changed(running,
                     running.sequence(std::move(arguments.positional), SequenceKind::tuple));
    });
  }
  return Object::attribute(interpreter, name);
}

Value Loop::call(Interpreter& interpreter, Arguments arguments) {
  if (!statement_.recursive) interpreter.refuse("loop() needs a loop that is marked recursive");
  const Parameters given(interpreter, std::move(arguments), {"iterable"});
  return interpreter.loop_output(statement_, interpreter.items_of(given.required(0)), around_,
                                 depth_ + 1);
}

Interpreter::Variables global_functions(Interpreter& interpreter, std::int64_t now) {
  const auto time = [now](Interpreter& running, Arguments arguments) {
    return format_time(running, std::move(arguments), now);
  };
  return {{"range", function(interpreter, &make_range)},
          {"dict", function(interpreter, &make_dict)},
          {"namespace", function(interpreter, &make_namespace)},
          {"cycler", function(interpreter, &make_cycler)},
          {"joiner", function(interpreter, &make_joiner)},
          {"raise_exception", function(interpreter, &raise_exception)},
          {"strftime_now", function(interpreter, time)}};
}

Parameters::Parameters(Interpreter& interpreter, Arguments arguments,
                       std::initializer_list<std::string_view> names)
    : interpreter_(interpreter), names_(names), values_(names.size()), given_(names.size()) {
  if (arguments.positional.size() > names_.size()) {
    interpreter_.refuse("{} arguments are given, and {} are taken", arguments.positional.size(),
                        names_.size());
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = std::move(arguments.positional[i]);
    given_[i] = true;
  }
  for (auto& [name, value] : arguments.named) {
    std::size_t i = 0;
    while (i < names_.size() && names_[i] != name) ++i;
    if (i == names_.size()) interpreter_.refuse("there is no parameter {}", shown(name));
    if (given_[i]) interpreter_.refuse("the parameter {} is given twice", shown(name));
    values_[i] = std::move(value);
    given_[i] = true;
  }
}

const Value& Parameters::required(std::size_t index) const {
  if (!given_[index]) interpreter_.refuse("the argument {} is missing", names_[index]);
  return values_[index];
}

bool Parameters::truth(std::size_t index, bool otherwise) const {
  return given_[index] ? values_[index].truth() : otherwise;
}

std::int64_t Parameters::integer(std::size_t index, std::int64_t otherwise) const {
  if (!given_[index] || values_[index].is_none()) return otherwise;
  if (!values_[index].is_integer()) {
    interpreter_.refuse("{} is a whole number, not a {}", names_[index], values_[index].type());
  }
  return values_[index].integer();
}

std::string Parameters::required_text(std::size_t index) const {
  if (required(index).is_none()) interpreter_.refuse("{} is None", names_[index]);
  return text(index, "");
}

bool Parameters::has_text(std::size_t index) const {
  return given_[index] && !values_[index].is_none();
}

std::string Parameters::text(std::size_t index, const std::string& otherwise) const {
  if (!has_text(index)) return otherwise;
  if (!values_[index].is_text()) {
    if (values_[index].is_undefined()) interpreter_.refuse("{}", values_[index].problem());
    interpreter_.refuse("{} is a text, not a {}", names_[index], values_[index].type());
  }
  return values_[index].text();
}

}  // namespace tessera::tokenizers::jinja
