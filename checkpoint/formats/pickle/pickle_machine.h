// The machine that reads a pickle's opcodes. It has a stack and a memo, and knows the opcodes that
// build values; an opcode that would run code only makes a record of the call.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"

namespace tessera::checkpoint::formats {

class PickleMachine {
 public:
  PickleMachine(std::string_view in, Pickle& out, const PickleRules& rules)
      : in_(in), out_(out), rules_(rules) {}

  void run();

 private:
  using Id = std::uint32_t;

  [[noreturn]] void refuse(const std::string& problem) const {
    fail(ErrorCode::checkpoint, "{} {} (byte {} of the pickle); nothing of it was executed",
         out_.source_, problem, opcode_at_);
  }
  void check(bool condition, const std::string& problem) const {
    if (!condition) refuse(problem);
  }
  void check(bool condition, const char* problem) const {
    if (!condition) refuse(problem);
  }

  std::string_view take(std::uint64_t bytes) {
    check(bytes <= in_.size() - at_, "is cut short");
    const std::string_view taken = in_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  std::uint64_t take_number(int bytes);
  std::string_view take_line();

  Id add(PickleKind kind, std::int64_t integer = 0, std::uint32_t index = 0);
  Id add_text(PickleKind kind, std::string_view text);
  Id add_items(PickleKind kind, std::vector<Id> items) {
    out_.items_.push_back(std::move(items));
    return add(kind, 0, static_cast<std::uint32_t>(out_.items_.size() - 1));
  }
  PickleKind kind_of(Id id) const { return out_.nodes_[id].kind; }
  std::vector<Id>& items_of(Id id) { return out_.items_[out_.nodes_[id].index]; }
  const std::string& text_of(Id id) const { return out_.texts_[out_.nodes_[id].index]; }

  void push(Id id) { stack_.push_back(id); }
  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Id pop() {
    check(stack_.size() > floor(), "takes from an empty stack");
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Id top() const {
    check(stack_.size() > floor(), "looks at an empty stack");
    return stack_.back();
  }
  std::vector<Id> pop_to_mark();

  void memoize(std::uint64_t index) {
    // A memo grows with each value that is put there, so a larger index is not valid.
    check(index <= at_, "has a memo index larger than itself");
    if (index >= memo_.size()) memo_.resize(index + 1, absent);
    memo_[index] = top();
  }
  void recall(std::uint64_t index) {
    check(index < memo_.size() && memo_[index] != absent, "reads a memo entry that it never wrote");
    push(memo_[index]);
  }

  void push_integer(std::string_view bytes);
  void push_real();

  void push_global(std::string_view module, std::string_view name);
  void stack_global();

  void set_items(Id dict, const std::vector<Id>& values);
  void append(Id list, const std::vector<Id>& values, PickleKind kind) {
    check(kind_of(list) == kind, kind == PickleKind::list
                                     ? "appends to a value that is not a list (APPEND)"
                                     : "adds to a value that is not a set (ADDITEMS)");
    std::vector<Id>& items = items_of(list);
    items.insert(items.end(), values.begin(), values.end());
  }

  // Makes a record of the call; for dict types, makes the dict itself.
  void call(const char* opcode);

  void build();

  // Executes one opcode; false after the last.
  bool step();
  // Each executes the opcode if it is one of its kind.
  bool value_opcode(unsigned char opcode);
  bool container_opcode(unsigned char opcode);
  bool object_opcode(unsigned char opcode);

  static constexpr Id absent = ~Id{0};
  std::string_view in_;
  Pickle& out_;
  const PickleRules& rules_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  std::size_t copied_ = 0;
  std::vector<Id> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Id> memo_;
};

}  // namespace tessera::checkpoint::formats
