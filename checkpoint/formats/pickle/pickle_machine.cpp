// Values, stack and memo of the machine.
#include "checkpoint/formats/pickle/pickle_machine.h"

#include <bit>

namespace tessera::checkpoint::formats {

namespace {

constexpr std::size_t pickle_nodes_limit = std::size_t{1} << 26;
constexpr std::size_t pickle_name_limit = 1 << 16;

// Strict, as JSON requires of names: no surrogates, no overlong sequences.
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

void PickleMachine::run() {
  check(
      in_.size() <= pickle_bytes_limit,
      fmt::format("is a pickle of {} bytes, over the limit of {}", in_.size(), pickle_bytes_limit));
  check(in_.size() >= 2 && in_[0] == '\x80' && in_[1] >= 2 && in_[1] <= 5,
        "is not a pickle of protocol 2 to 5");
  at_ = 2;
  while (step()) {
  }
  check(stack_.size() == 1 && marks_.empty(), "ends with values left over");
  check(at_ == in_.size(), "has bytes behind the pickle's end");
  out_.root_ = stack_[0];
}

std::uint64_t PickleMachine::take_number(int bytes) {
  std::uint64_t value = 0;
  int shift = 0;
  for (const char c : take(static_cast<std::uint64_t>(bytes))) {
    value |= std::uint64_t{static_cast<unsigned char>(c)} << shift;
    shift += 8;
  }
  return value;
}

std::string_view PickleMachine::take_line() {
  const std::size_t end = in_.substr(at_, pickle_name_limit).find('\n');
  check(end != std::string_view::npos, "has a name without an end");
  const std::string_view line = in_.substr(at_, end);
  at_ += end + 1;
  return line;
}

PickleMachine::Id PickleMachine::add_text(PickleKind kind, std::string_view text) {
  check(kind == PickleKind::bytes || is_utf8(text), "has a string that is not UTF-8");
  out_.texts_.emplace_back(text);
  return add(kind, 0, static_cast<std::uint32_t>(out_.texts_.size() - 1));
}

PickleMachine::Id PickleMachine::add(PickleKind kind, std::int64_t integer, std::uint32_t index) {
  if (out_.nodes_.size() >= pickle_nodes_limit) {
    refuse(fmt::format("has more than {} values", pickle_nodes_limit));
  }
  Pickle::Node node;
  node.kind = kind;
  node.integer = integer;
  node.index = index;
  out_.nodes_.push_back(node);
  return static_cast<Id>(out_.nodes_.size() - 1);
}

std::vector<PickleMachine::Id> PickleMachine::pop_to_mark() {
  check(!marks_.empty(), "closes a container that it never opened");
  const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Id> values(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return values;
}

void PickleMachine::push_integer(std::string_view bytes) {
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

void PickleMachine::push_real() {
  std::uint64_t bits = 0;
  for (const char c : take(8)) bits = (bits << 8) | static_cast<unsigned char>(c);
  const Id id = add(PickleKind::real);
  out_.nodes_[id].real = std::bit_cast<double>(bits);
  push(id);
}

void PickleMachine::push_global(std::string_view module, std::string_view name) {
  const std::string global = fmt::format("{}.{}", module, name);
  if (!rules_.allows(global)) {
    const char* const about =
        rules_.advice_about == nullptr ? nullptr : rules_.advice_about(global, in_);
    refuse(
        fmt::format("asks for the Python object {}, which {} does not need: it is not loaded. "
                    "{}",
                    shown(global), rules_.holds, about == nullptr ? rules_.advice : about));
  }
  push(add_text(PickleKind::global, global));
}

void PickleMachine::stack_global() {
  const Id name = pop();
  const Id module = pop();
  check(kind_of(name) == PickleKind::text && kind_of(module) == PickleKind::text,
        "names a global by something other than two strings");
  push_global(std::string(text_of(module)), std::string(text_of(name)));
}

void PickleMachine::set_items(Id dict, const std::vector<Id>& values) {
  check(kind_of(dict) == PickleKind::dict, "sets an item of a value that is not a dict (SETITEM)");
  check(values.size() % 2 == 0, "has a key without a value");
  for (std::size_t i = 0; i < values.size(); i += 2) {
    const PickleKind key = kind_of(values[i]);
    check(key != PickleKind::list && key != PickleKind::dict && key != PickleKind::set,
          "has a dict key of a mutable kind");
  }
  std::vector<Id>& items = items_of(dict);
  items.insert(items.end(), values.begin(), values.end());
}

void PickleMachine::call(const char* opcode) {
  const Id arguments = pop();
  const Id callable = pop();
  if (kind_of(callable) != PickleKind::global || kind_of(arguments) != PickleKind::tuple) {
    refuse(fmt::format("calls a value that is not a known function ({})", opcode));
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
        check(two, "makes a dict of values that are not pairs");
        content.push_back(items_of(pair)[0]);
        content.push_back(items_of(pair)[1]);
        // One list may be an argument of many calls: the copies are bounded by the bytes read.
        check(content.size() <= 2 * in_.size(), "copies more than it holds");
      }
    }
    copied_ += content.size();
    check(copied_ <= 4 * in_.size(), "copies more than it holds");
  }
  push(add_items(PickleKind::dict, std::move(content)));
}

void PickleMachine::build() {
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

Pickle::Pickle(std::string_view bytes, std::string source, const PickleRules& rules)
    : source_(std::move(source)) {
  PickleMachine(bytes, *this, rules).run();
}

}  // namespace tessera::checkpoint::formats
