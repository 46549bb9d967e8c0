// Reads FlatBuffers from untrusted bytes: each access is checked against the buffer.
// The layout: https://flatbuffers.dev/internals/
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::tasks {

// The elements of a vector in a FlatBuffer. `bytes` is the whole buffer.
struct FlatVector {
  std::string_view bytes;
  std::size_t begin = 0;  // of the first element
  std::size_t count = 0;
};

// A table of a FlatBuffer. Does not own the bytes. Fields are counted from 0. All functions throw
// an Error(data) that begins with `what` if the buffer is damaged.
class FlatTable {
 public:
  // The root table. `what` must outlive all tables of the buffer.
  FlatTable(std::string_view bytes, const std::string& what);

  // The fallback stands for a field that is absent.
  template <class Number>
  [[nodiscard]] Number number(std::size_t field, Number fallback) const {
    const std::optional<std::size_t> at = place(field, sizeof(Number));
    if (!at) return fallback;
    Number value;
    std::memcpy(&value, bytes_.data() + *at, sizeof(Number));
    return value;
  }
  [[nodiscard]] std::optional<FlatTable> table(std::size_t field) const;
  [[nodiscard]] std::string_view text(std::size_t field) const;  // absent: empty
  // Elements of a fixed size; absent: none.
  [[nodiscard]] FlatVector vector(std::size_t field, std::size_t element_bytes) const;
  // An element of a vector of tables (element size 4).
  [[nodiscard]] FlatTable element(const FlatVector& tables, std::size_t index) const;

 private:
  FlatTable(std::string_view bytes, const std::string* what, std::size_t at);
  template <class Number>
  [[nodiscard]] Number read(std::size_t at) const;
  [[nodiscard]] std::optional<std::size_t> place(std::size_t field, std::size_t size) const;
  [[nodiscard]] std::size_t target(std::size_t at) const;
  [[noreturn]] void damaged() const;

  std::string_view bytes_;
  const std::string* what_;
  std::size_t at_ = 0;      // of the table
  std::size_t vtable_ = 0;  // of its list of fields
  std::size_t vtable_bytes_ = 0;
  std::size_t table_bytes_ = 0;
};

// A number at a place of a vector, which FlatTable::vector() has checked.
template <class Number>
Number flat_number(const FlatVector& vector, std::size_t offset) {
  Number value;
  std::memcpy(&value, vector.bytes.data() + vector.begin + offset, sizeof(Number));
  return value;
}

}  // namespace tessera::tasks
