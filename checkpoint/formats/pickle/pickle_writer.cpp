// Writing pickles of protocol 2.
#include <bit>
#include <limits>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"

namespace tessera::checkpoint::formats {

PickleWriter::PickleWriter() {
  byte(0x80);
  byte(2);
}

void PickleWriter::little_endian(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) byte(static_cast<int>((value >> (8 * i)) & 0xff));
}

PickleWriter& PickleWriter::none() {
  byte('N');
  return *this;
}

PickleWriter& PickleWriter::boolean(bool value) {
  byte(value ? 0x88 : 0x89);
  return *this;
}

PickleWriter& PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value < 256) {
    byte('K');
    little_endian(static_cast<std::uint64_t>(value), 1);
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    byte('J');
    little_endian(static_cast<std::uint64_t>(value), 4);
  } else {
    byte(0x8a);
    byte(8);
    little_endian(static_cast<std::uint64_t>(value), 8);
  }
  return *this;
}

PickleWriter& PickleWriter::real(double value) {
  byte('G');
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) byte(static_cast<int>((bits >> shift) & 0xff));
  return *this;
}

PickleWriter& PickleWriter::text(std::string_view value) {
  const auto [known, fresh] = texts_.try_emplace(std::string(value), memo_);
  if (!fresh) return get(known->second);
  TESSERA_CHECK(value.size() < (std::size_t{1} << 31), ErrorCode::checkpoint,
                "a text of {} bytes is too long for a pickle", value.size());
  byte('X');
  little_endian(value.size(), 4);
  out_ += value;
  put();
  return *this;
}

PickleWriter& PickleWriter::global(const char* module, const char* name) {
  const auto [known, fresh] = globals_.try_emplace(std::string(module) + '\n' + name, memo_);
  if (!fresh) return get(known->second);
  byte('c');
  out_ += known->first;
  byte('\n');
  put();
  return *this;
}

PickleWriter& PickleWriter::empty_list() {
  byte(']');
  return *this;
}
PickleWriter& PickleWriter::empty_tuple() {
  byte(')');
  return *this;
}
PickleWriter& PickleWriter::empty_dict() {
  byte('}');
  return *this;
}
PickleWriter& PickleWriter::mark() {
  byte('(');
  return *this;
}
PickleWriter& PickleWriter::tuple() {
  byte('t');
  return *this;
}
PickleWriter& PickleWriter::append() {
  byte('a');
  return *this;
}
PickleWriter& PickleWriter::set_item() {
  byte('s');
  return *this;
}
PickleWriter& PickleWriter::reduce() {
  byte('R');
  return *this;
}
PickleWriter& PickleWriter::new_object() {
  byte(0x81);
  return *this;
}
PickleWriter& PickleWriter::build() {
  byte('b');
  return *this;
}
PickleWriter& PickleWriter::persistent() {
  byte('Q');
  return *this;
}

PickleWriter& PickleWriter::tuple_of(const std::vector<std::int64_t>& values) {
  if (values.empty()) return empty_tuple();
  mark();
  for (const std::int64_t value : values) integer(value);
  return tuple();
}

std::uint32_t PickleWriter::put() {
  if (memo_ < 256) {
    byte('q');
    little_endian(memo_, 1);
  } else {
    byte('r');
    little_endian(memo_, 4);
  }
  return memo_++;
}

PickleWriter& PickleWriter::get(std::uint32_t memo) {
  if (memo < 256) {
    byte('h');
    little_endian(memo, 1);
  } else {
    byte('j');
    little_endian(memo, 4);
  }
  return *this;
}

std::string PickleWriter::finish() {
  byte('.');
  return std::move(out_);
}

}  // namespace tessera::checkpoint::formats
