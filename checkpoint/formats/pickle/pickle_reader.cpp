// The opcodes and their effect on the stack.
#include <fmt/format.h>
#include <string>
#include <utility>

#include "checkpoint/formats/pickle/pickle_machine.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::size_t pickle_marks_limit = 1000;  // tuples, lists and dicts that are open at once

// Describes opcodes that may appear but are not supported, for the message.
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

}  // namespace

bool PickleMachine::step() {
  opcode_at_ = at_;
  const auto opcode = static_cast<unsigned char>(take(1)[0]);
  if (opcode == '.') return false;
  if (!value_opcode(opcode) && !container_opcode(opcode) && !object_opcode(opcode)) {
    refuse(fmt::format("has the opcode {}, which no checkpoint needs", describe_opcode(opcode)));
  }
  return true;
}

bool PickleMachine::value_opcode(unsigned char opcode) {
  switch (opcode) {
    case 0x80:  // PROTO
      check(static_cast<unsigned char>(take(1)[0]) <= 5, "has a protocol newer than 5");
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

bool PickleMachine::container_opcode(unsigned char opcode) {
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

bool PickleMachine::object_opcode(unsigned char opcode) {
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

}  // namespace tessera::checkpoint::formats
