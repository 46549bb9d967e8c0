// The values that a program keeps in a checkpoint beside tensors: named numbers, booleans and
// texts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

// Has value semantics: copies are independent. A name may contain groups, as in "position/samples";
// the manifest keeps them as nested objects.
class Scalars {
 public:
  Scalars();
  Scalars(const Scalars& other);
  Scalars(Scalars&& other) noexcept;
  Scalars& operator=(const Scalars& other);
  Scalars& operator=(Scalars&& other) noexcept;
  ~Scalars();
  bool operator==(const Scalars& other) const;

  // Adds or replaces. Throws std::logic_error for an empty name, or one that runs through a value
  // that is not a group. Returns *this.
  Scalars& set(std::string_view name, bool value);
  Scalars& set(std::string_view name, std::int64_t value);
  Scalars& set(std::string_view name, std::uint64_t value);
  Scalars& set(std::string_view name, int value);
  Scalars& set(std::string_view name, double value);
  Scalars& set(std::string_view name, std::string_view value);
  Scalars& set(std::string_view name, const char* value);

  [[nodiscard]] bool contains(std::string_view name) const;

  // T is bool, std::int64_t, std::uint64_t, double or std::string. Throws Error(checkpoint) if the
  // value is missing, of another type or out of range.
  template <class T>
  [[nodiscard]] T get(std::string_view name) const;
  // Returns the fallback if the name does not exist.
  template <class T>
  [[nodiscard]] T get(std::string_view name, const T& fallback) const {
    return contains(name) ? get<T>(name) : fallback;
  }

  struct Data;  // JSON, which this header does not show: checkpoint/state/scalars_json.h
  [[nodiscard]] Data& data() { return *data_; }
  [[nodiscard]] const Data& data() const { return *data_; }

 private:
  std::unique_ptr<Data> data_;
};

}  // namespace tessera
