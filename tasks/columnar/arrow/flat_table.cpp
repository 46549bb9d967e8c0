// Offsets of FlatBuffers, each checked.
#include "tasks/columnar/arrow/flat_table.h"

#include "base/error.h"

namespace tessera::tasks {

void FlatTable::damaged() const {
  fail(ErrorCode::data, "{}: the description of its columns or rows is damaged", *what_);
}

template <class Number>
Number FlatTable::read(std::size_t at) const {
  if (at > bytes_.size() || sizeof(Number) > bytes_.size() - at) damaged();
  Number value;
  std::memcpy(&value, bytes_.data() + at, sizeof(Number));
  return value;
}

FlatTable::FlatTable(std::string_view bytes, const std::string& what)
    : bytes_(bytes), what_(&what) {
  *this = FlatTable(bytes, what_, target(0));
}

FlatTable::FlatTable(std::string_view bytes, const std::string* what, std::size_t at)
    : bytes_(bytes), what_(what), at_(at) {
  const auto back = static_cast<std::int64_t>(read<std::int32_t>(at_));
  const std::int64_t vtable = static_cast<std::int64_t>(at_) - back;
  if (vtable < 0) damaged();
  vtable_ = static_cast<std::size_t>(vtable);
  vtable_bytes_ = read<std::uint16_t>(vtable_);
  table_bytes_ = read<std::uint16_t>(vtable_ + 2);
  if (vtable_bytes_ < 4 || vtable_bytes_ > bytes_.size() - vtable_ || table_bytes_ < 4 ||
      table_bytes_ > bytes_.size() - at_) {
    damaged();
  }
}

std::size_t FlatTable::target(std::size_t at) const {
  const auto distance = read<std::uint32_t>(at);
  if (distance == 0 || distance > bytes_.size() - at) damaged();
  return at + distance;
}

std::optional<std::size_t> FlatTable::place(std::size_t field, std::size_t size) const {
  const std::size_t entry = 4 + 2 * field;
  if (entry + 2 > vtable_bytes_) return std::nullopt;
  const std::size_t offset = read<std::uint16_t>(vtable_ + entry);
  if (offset == 0) return std::nullopt;
  if (offset > table_bytes_ || size > table_bytes_ - offset) damaged();
  return at_ + offset;
}

std::optional<FlatTable> FlatTable::table(std::size_t field) const {
  const std::optional<std::size_t> at = place(field, 4);
  if (!at) return std::nullopt;
  return FlatTable(bytes_, what_, target(*at));
}

FlatVector FlatTable::vector(std::size_t field, std::size_t element_bytes) const {
  const std::optional<std::size_t> at = place(field, 4);
  if (!at) return {bytes_, 0, 0};
  const std::size_t begin = target(*at);
  const std::size_t count = read<std::uint32_t>(begin);
  if (count > (bytes_.size() - begin - 4) / element_bytes) damaged();
  return {bytes_, begin + 4, count};
}

std::string_view FlatTable::text(std::size_t field) const {
  const FlatVector letters = vector(field, 1);
  return bytes_.substr(letters.begin, letters.count);
}

FlatTable FlatTable::element(const FlatVector& tables, std::size_t index) const {
  return {bytes_, what_, target(tables.begin + 4 * index)};
}

}  // namespace tessera::tasks
