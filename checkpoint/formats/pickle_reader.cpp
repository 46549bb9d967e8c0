// The machine that reads a pickle's opcodes. It has a stack and a memo, and knows the opcodes that
// build values; what would run code only ever makes a record of the call.
#include <fmt/format.h>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "checkpoint/formats/pickle.h"
#include "kernels/base/error.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::size_t pickle_nodes_limit = std::size_t{1} << 26;
constexpr std::size_t pickle_marks_limit = 1000;  // tuples, lists and dicts that are open at once
constexpr std::size_t pickle_name_limit = 1 << 16;

// The opcodes that could appear and have no place here, for the message.
std::string describe_opcode(unsigned char opcode) {
  switch (opcode) {
    case 'i':
      return "INST (0x69), an old way to call a function";
    case 'o':
      return "OBJ (0x6f), an old way to call a function";
    case 'P':
      return "PERSID (0x50), of protocol 0";
    case 0x82:
    case 0x83:
    case 0x84:
      return fmt::format("EXT ({:#x}), a reference into Python's own registry", opcode);
    case 0x97:
    case 0x98:
      return fmt::format("an out-of-band buffer ({:#x})", opcode);
    default:
      return fmt::format("{:#x}", opcode);
  }
}

// Strictly: no surrogates, nothing longer than it must be, as JSON wants it of names.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[i + k]); };
    const unsigned lead = byte(0);
    const std::size_t more = lead < 0x80                   ? 0
                             : lead >= 0xc2 && lead < 0xe0 ? 1
                             : lead >= 0xe0 && lead < 0xf0 ? 2
                             : lead >= 0xf0 && lead < 0xf5 ? 3
                                                           : 4;
    if (more == 4 || text.size() - i <= more) return false;
    for (std::size_t k = 1; k <= more; ++k) {
      if ((byte(k) & 0xc0) != 0x80) return false;
    }
    const bool wrong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
                       (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f);
    if (wrong) return false;
    i += more + 1;
  }
  return true;
}

bool is_dict_type(std::string_view global) {
  return global == "collections.OrderedDict" || global == "collections.Counter" ||
         global == "collections.defaultdict" || global == "builtins.dict" ||
         global == "__builtin__.dict";
}

}  // namespace

class PickleMachine {
 public:
  PickleMachine(std::string_view in, Pickle& out, const PickleRules& rules)
      : in_(in), out_(out), rules_(rules) {}

  void run() {
    check(in_.size() <= pickle_bytes_limit,
          fmt::format("is a pickle of {} bytes, over the limit of {}", in_.size(),
                      pickle_bytes_limit));
    check(in_.size() >= 2 && in_[0] == '\x80' && in_[1] >= 2 && in_[1] <= 5,
          "is no pickle of protocol 2 to 5");
    at_ = 2;
    while (step()) {
    }
    check(stack_.size() == 1 && marks_.empty(), "ends with values left over");
    check(at_ == in_.size(), "has bytes behind the pickle's end");
    out_.root_ = stack_[0];
  }

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
  std::uint64_t take_number(int bytes) {
    std::uint64_t value = 0;
    int shift = 0;
    for (const char c : take(static_cast<std::uint64_t>(bytes))) {
      value |= std::uint64_t{static_cast<unsigned char>(c)} << shift;
      shift += 8;
    }
    return value;
  }
  std::string_view take_line() {
    const std::size_t end = in_.substr(at_, pickle_name_limit).find('\n');
    check(end != std::string_view::npos, "has a name without an end");
    const std::string_view line = in_.substr(at_, end);
    at_ += end + 1;
    return line;
  }

  Id add(PickleKind kind, std::int64_t integer = 0, std::uint32_t index = 0) {
    check(out_.nodes_.size() < pickle_nodes_limit,
          fmt::format("has more than {} values", pickle_nodes_limit).c_str());
    Pickle::Node node;
    node.kind = kind;
    node.integer = integer;
    node.index = index;
    out_.nodes_.push_back(node);
    return static_cast<Id>(out_.nodes_.size() - 1);
  }
  Id add_text(PickleKind kind, std::string_view text) {
    check(kind == PickleKind::bytes || is_utf8(text), "has a string that is not UTF-8");
    out_.texts_.emplace_back(text);
    return add(kind, 0, static_cast<std::uint32_t>(out_.texts_.size() - 1));
  }
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
  std::vector<Id> pop_to_mark() {
    check(!marks_.empty(), "closes what it never opened");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Id> values(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return values;
  }

  void memoize(std::uint64_t index) {
    // A memo grows by what is put there, so an index far away is no honest one.
    check(index <= at_, "has a memo index larger than itself");
    if (index >= memo_.size()) memo_.resize(index + 1, absent);
    memo_[index] = top();
  }
  void recall(std::uint64_t index) {
    check(index < memo_.size() && memo_[index] != absent, "asks for what it never memoized");
    push(memo_[index]);
  }

  void push_integer(std::string_view bytes) {
    if (bytes.size() > 8) {
      push(add(PickleKind::big_integer));
      return;
    }
    std::uint64_t value = 0;
    for (std::size_t i = bytes.size(); i > 0; --i) {
      value = (value << 8) | static_cast<unsigned char>(bytes[i - 1]);
    }
    if (!bytes.empty() && bytes.size() < 8 && (bytes.back() & '\x80') != 0) {
      value |= ~std::uint64_t{0} << (8 * bytes.size());
    }
    push(add(PickleKind::integer, static_cast<std::int64_t>(value)));
  }
  void push_real() {
    std::uint64_t bits = 0;
    for (const char c : take(8)) bits = (bits << 8) | static_cast<unsigned char>(c);
    const Id id = add(PickleKind::real);
    out_.nodes_[id].real = std::bit_cast<double>(bits);
    push(id);
  }

  void push_global(std::string_view module, std::string_view name) {
    const std::string global = fmt::format("{}.{}", module, name);
    if (!rules_.allows(global)) {
      refuse(
          fmt::format("asks for the Python object {}, which {} does not need: it is not loaded. "
                      "{}",
                      shown(global), rules_.holds, rules_.advice));
    }
    push(add_text(PickleKind::global, global));
  }
  void stack_global() {
    const Id name = pop();
    const Id module = pop();
    check(kind_of(name) == PickleKind::text && kind_of(module) == PickleKind::text,
          "names a global by something other than two strings");
    push_global(std::string(text_of(module)), std::string(text_of(name)));
  }

  void set_items(Id dict, const std::vector<Id>& values) {
    check(kind_of(dict) == PickleKind::dict, "sets an item of what is no dict (SETITEM)");
    check(values.size() % 2 == 0, "has a key without a value");
    for (std::size_t i = 0; i < values.size(); i += 2) {
      const PickleKind key = kind_of(values[i]);
      check(key != PickleKind::list && key != PickleKind::dict && key != PickleKind::set,
            "has a key that cannot be one");
    }
    std::vector<Id>& items = items_of(dict);
    items.insert(items.end(), values.begin(), values.end());
  }
  void append(Id list, const std::vector<Id>& values, PickleKind kind) {
    check(kind_of(list) == kind, kind == PickleKind::list ? "appends to what is no list (APPEND)"
                                                          : "adds to what is no set (ADDITEMS)");
    std::vector<Id>& items = items_of(list);
    items.insert(items.end(), values.begin(), values.end());
  }

  // The record of a call; of the dict types the dict itself.
  void call(const char* opcode) {
    const Id arguments = pop();
    const Id callable = pop();
    if (kind_of(callable) != PickleKind::global || kind_of(arguments) != PickleKind::tuple) {
      refuse(fmt::format("calls what is no known function ({})", opcode));
    }
    if (!is_dict_type(text_of(callable))) {
      push(add_items(PickleKind::object, {callable, arguments}));
      return;
    }
    std::vector<Id> content;
    for (const Id argument : items_of(arguments)) {
      if (kind_of(argument) == PickleKind::dict) {
        content = items_of(argument);
      } else if (kind_of(argument) == PickleKind::list) {
        for (const Id pair : items_of(argument)) {
          const bool two =
              (kind_of(pair) == PickleKind::tuple || kind_of(pair) == PickleKind::list) &&
              items_of(pair).size() == 2;
          check(two, "makes a dict of what are no pairs");
          content.push_back(items_of(pair)[0]);
          content.push_back(items_of(pair)[1]);
          // One list may stand in many calls: what they copy is bounded by what was read.
          check(content.size() <= 2 * in_.size(), "copies more than it holds");
        }
      }
      copied_ += content.size();
      check(copied_ <= 4 * in_.size(), "copies more than it holds");
    }
    push(add_items(PickleKind::dict, std::move(content)));
  }

  void build() {
    const Id state = pop();
    const Id target = top();
    if (kind_of(target) == PickleKind::dict) return;  // OrderedDict's attributes: `_metadata`
    if (kind_of(target) != PickleKind::object) {
      refuse(fmt::format("gives a state to {} (BUILD)", name_of(kind_of(target))));
    }
    std::vector<Id>& items = items_of(target);
    check(items.size() == 2, "gives an object two states (BUILD)");
    items.push_back(state);
  }

  bool step() {
    opcode_at_ = at_;
    const auto opcode = static_cast<unsigned char>(take(1)[0]);
    if (opcode == '.') return false;
    if (!value_opcode(opcode) && !container_opcode(opcode) && !object_opcode(opcode)) {
      refuse(fmt::format("has the opcode {}, which no checkpoint needs", describe_opcode(opcode)));
    }
    return true;
  }

  bool value_opcode(unsigned char opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        check(take(1)[0] <= 5, "has a protocol newer than 5");
        return true;
      case 0x95:  // FRAME: a hint for readers of streams
        check(take_number(8) <= in_.size() - at_, "has a frame that is cut short");
        return true;
      case 'N':
        push(add(PickleKind::none));
        return true;
      case 0x88:
      case 0x89:
        push(add(PickleKind::boolean, opcode == 0x88 ? 1 : 0));
        return true;
      case 'J':
        push_integer(take(4));
        return true;
      case 'K':
        push(add(PickleKind::integer, static_cast<std::int64_t>(take_number(1))));
        return true;
      case 'M':
        push(add(PickleKind::integer, static_cast<std::int64_t>(take_number(2))));
        return true;
      case 0x8a:
        push_integer(take(take_number(1)));
        return true;
      case 0x8b:
        push_integer(take(take_number(4)));
        return true;
      case 'G':
        push_real();
        return true;
      case 'X':
        push(add_text(PickleKind::text, take(take_number(4))));
        return true;
      case 0x8c:
        push(add_text(PickleKind::text, take(take_number(1))));
        return true;
      case 0x8d:
        push(add_text(PickleKind::text, take(take_number(8))));
        return true;
      case 'U':  // strings of Python 2
        push(add_text(PickleKind::text, take(take_number(1))));
        return true;
      case 'T':
        push(add_text(PickleKind::text, take(take_number(4))));
        return true;
      case 'C':
        push(add_text(PickleKind::bytes, take(take_number(1))));
        return true;
      case 'B':
        push(add_text(PickleKind::bytes, take(take_number(4))));
        return true;
      case 0x8e:
      case 0x96:
        push(add_text(PickleKind::bytes, take(take_number(8))));
        return true;
      default:
        return false;
    }
  }

  bool container_opcode(unsigned char opcode) {
    switch (opcode) {
      case '(':
        check(marks_.size() < pickle_marks_limit, "is nested too deep");
        marks_.push_back(stack_.size());
        return true;
      case '0':
        if (!marks_.empty() && stack_.size() == marks_.back()) {
          marks_.pop_back();
        } else {
          pop();
        }
        return true;
      case '1':
        pop_to_mark();
        return true;
      case ')':
        push(add_items(PickleKind::tuple, {}));
        return true;
      case ']':
        push(add_items(PickleKind::list, {}));
        return true;
      case '}':
        push(add_items(PickleKind::dict, {}));
        return true;
      case 0x8f:
        push(add_items(PickleKind::set, {}));
        return true;
      case 't':
        push(add_items(PickleKind::tuple, pop_to_mark()));
        return true;
      case 'l':
        push(add_items(PickleKind::list, pop_to_mark()));
        return true;
      case 0x91:
        push(add_items(PickleKind::set, pop_to_mark()));
        return true;
      case 'd': {
        const std::vector<Id> values = pop_to_mark();
        push(add_items(PickleKind::dict, {}));
        set_items(top(), values);
        return true;
      }
      case 0x85:
      case 0x86:
      case 0x87: {
        std::vector<Id> values(opcode - 0x84);
        for (std::size_t i = values.size(); i > 0; --i) values[i - 1] = pop();
        push(add_items(PickleKind::tuple, std::move(values)));
        return true;
      }
      case 'a': {
        const Id value = pop();
        append(top(), {value}, PickleKind::list);
        return true;
      }
      case 'e':
      case 0x90: {
        const std::vector<Id> values = pop_to_mark();
        append(top(), values, opcode == 'e' ? PickleKind::list : PickleKind::set);
        return true;
      }
      case 's': {
        const Id value = pop();
        const Id key = pop();
        set_items(top(), {key, value});
        return true;
      }
      case 'u': {
        const std::vector<Id> values = pop_to_mark();
        set_items(top(), values);
        return true;
      }
      default:
        return false;
    }
  }

  bool object_opcode(unsigned char opcode) {
    switch (opcode) {
      case 'q':
        memoize(take_number(1));
        return true;
      case 'r':
        memoize(take_number(4));
        return true;
      case 0x94:
        memo_.push_back(top());
        return true;
      case 'h':
        recall(take_number(1));
        return true;
      case 'j':
        recall(take_number(4));
        return true;
      case '2':
        push(top());
        return true;
      case 'c': {
        const std::string_view module = take_line();
        push_global(module, take_line());
        return true;
      }
      case 0x93:
        stack_global();
        return true;
      case 'R':
        call("REDUCE");
        return true;
      case 0x81:
        call("NEWOBJ");
        return true;
      case 'b':
        build();
        return true;
      case 'Q': {
        const Id id = pop();
        push(add_items(PickleKind::persistent, {id}));
        return true;
      }
      default:
        return false;
    }
  }

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

Pickle::Pickle(std::string_view bytes, std::string source, const PickleRules& rules)
    : source_(std::move(source)) {
  PickleMachine(bytes, *this, rules).run();
}

}  // namespace tessera::checkpoint::formats
