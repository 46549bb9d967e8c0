// A tensor's shape: up to six sizes, held inline.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace tessera {

class Shape {
 public:
  static constexpr int max_dimensions = 6;
  static constexpr std::int64_t max_elements = std::int64_t{1} << 60;  // so that bytes fit 64 bits

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes);
  explicit Shape(std::span<const std::int64_t> sizes);

  [[nodiscard]] int dimensions() const { return dimensions_; }
  // Negative indices count from the end.
  std::int64_t operator[](int dimension) const { return sizes_[index(dimension)]; }
  std::int64_t& operator[](int dimension) { return sizes_[index(dimension)]; }
  // Throws a std::logic_error if they are more than max_elements.
  [[nodiscard]] std::int64_t elements() const;
  [[nodiscard]] std::span<const std::int64_t> sizes() const {
    return {sizes_.data(), static_cast<std::size_t>(dimensions_)};
  }
  [[nodiscard]] std::string to_string() const;  // "[2, 3]"
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  [[nodiscard]] std::size_t index(int dimension) const;

  std::array<std::int64_t, max_dimensions> sizes_{};
  int dimensions_ = 0;
};

}  // namespace tessera
