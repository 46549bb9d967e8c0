// The values of a template: those of Python that Jinja's templates compute with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::tokenizers::jinja {

class Object;
class Value;

// A value that is missing. It prints as an empty text, and any other use of it is an error.
struct Undefined {
  std::shared_ptr<const std::string> problem;  // null: "a value is undefined"
};
struct None {};

// list and tuple are Python's. A view (dict.items()) has a length and no places. A range has both.
enum class SequenceKind : std::uint8_t { list, tuple, view, range };
struct Sequence;
struct Mapping;

// Texts are valid UTF-8. Sequences and mappings never change, so values contain no cycle, and they
// are nested at most most_nesting deep. What changes (namespaces, generators) is an Object, which
// the interpreter owns.
class Value {
 public:
  Value() = default;  // undefined
  Value(None /*none*/) : held_(None{}) {}
  Value(bool value) : held_(value) {}
  Value(std::int64_t value) : held_(value) {}
  Value(double value) : held_(value) {}
  Value(std::string value) : held_(std::make_shared<const std::string>(std::move(value))) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(Object* object) : held_(object) {}
  Value(Undefined undefined) : held_(std::move(undefined)) {}
  Value(std::shared_ptr<const Sequence> sequence) : held_(std::move(sequence)) {}
  Value(std::shared_ptr<const Mapping> mapping) : held_(std::move(mapping)) {}
  static Value missing(std::string problem);

  template <class T>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<T>(held_);
  }
  [[nodiscard]] bool is_undefined() const { return is<Undefined>(); }
  [[nodiscard]] bool is_none() const { return is<None>(); }
  [[nodiscard]] bool is_text() const { return is<std::shared_ptr<const std::string>>(); }
  [[nodiscard]] bool is_sequence() const { return is<std::shared_ptr<const Sequence>>(); }
  [[nodiscard]] bool is_mapping() const { return is<std::shared_ptr<const Mapping>>(); }
  [[nodiscard]] bool is_number() const { return is<std::int64_t>() || is<double>() || is<bool>(); }
  // A bool is a whole number, as in Python.
  [[nodiscard]] bool is_integer() const { return is<std::int64_t>() || is<bool>(); }

  [[nodiscard]] const std::string& text() const {
    return *std::get<std::shared_ptr<const std::string>>(held_);
  }
  [[nodiscard]] const Sequence& sequence() const {
    return *std::get<std::shared_ptr<const Sequence>>(held_);
  }
  [[nodiscard]] const Mapping& mapping() const {
    return *std::get<std::shared_ptr<const Mapping>>(held_);
  }
  [[nodiscard]] bool boolean() const { return std::get<bool>(held_); }
  [[nodiscard]] std::int64_t integer() const;  // of a bool as well
  [[nodiscard]] double number() const;         // of any number
  [[nodiscard]] double floating() const { return std::get<double>(held_); }
  [[nodiscard]] Object* object() const { return std::get<Object*>(held_); }
  // Why it is undefined.
  [[nodiscard]] std::string problem() const;

  // Python's bool(value). Objects are true.
  [[nodiscard]] bool truth() const;
  // "str", "dict", ..: Python's names.
  [[nodiscard]] std::string_view type() const;

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const Sequence>, std::shared_ptr<const Mapping>, Object*>
      held_;
};

inline constexpr int most_nesting = 100;
// Values may hold one value many times, so what it takes to look at all of one is counted: 1 for
// each value in it, wherever it is, and 1 for 16 bytes of text.
inline constexpr std::int64_t largest_extent = std::int64_t{1} << 24;
[[nodiscard]] std::int64_t extent_of(const Value& value);

struct Sequence {
  SequenceKind kind = SequenceKind::list;
  std::vector<Value> items;
  int nesting = 1;
  std::int64_t extent = 1;
};

struct Mapping {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion, keys once each
  int nesting = 1;
  std::int64_t extent = 1;
  [[nodiscard]] const Value* find(const Value& key) const;
  [[nodiscard]] const Value* find(std::string_view key) const;
};

// Throw std::length_error if the values are nested too deep, or the extent is above the largest.
Value make_sequence(std::vector<Value> items, SequenceKind kind = SequenceKind::list);
// A later value of a key takes the place of an earlier one.
Value make_mapping(std::vector<std::pair<Value, Value>>&& items);

// Python's ==.
bool equals(const Value& a, const Value& b);
// Python's order: below 0, 0 or above 0. False if it has none for these types.
bool compare(const Value& a, const Value& b, int& order);

}  // namespace tessera::tokenizers::jinja
