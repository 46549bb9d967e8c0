// Shape checks and text.
#include "engine/shape.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace tessera {

Shape::Shape(std::initializer_list<std::int64_t> sizes)
    : Shape(std::span<const std::int64_t>(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const std::int64_t> sizes) : dimensions_(static_cast<int>(sizes.size())) {
  TESSERA_REQUIRE(sizes.size() <= max_dimensions,
                  "a tensor has at most {} dimensions, {} asked for", max_dimensions, sizes.size());
  for (const std::int64_t size : sizes) {
    TESSERA_REQUIRE(size >= 0, "a tensor's size cannot be negative: [{}]", fmt::join(sizes, ", "));
  }
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
}

std::int64_t Shape::elements() const {
  const auto all = sizes();
  if (std::ranges::find(all, 0) != all.end()) return 0;
  std::int64_t product = 1;
  for (const std::int64_t size : all) {
    const bool fits = !__builtin_mul_overflow(product, size, &product) && product <= max_elements;
    TESSERA_REQUIRE(fits, "a tensor of shape {} has more elements than memory can hold",
                    to_string());
  }
  return product;
}

std::string Shape::to_string() const {
  return fmt::format("[{}]", fmt::join(sizes(), ", "));
}

std::size_t Shape::index(int dimension) const {
  const int from_start = dimension < 0 ? dimension + dimensions_ : dimension;
  TESSERA_REQUIRE(from_start >= 0 && from_start < dimensions_,
                  "dimension {} of a tensor of shape {}", dimension, to_string());
  return static_cast<std::size_t>(from_start);
}

bool operator==(const Shape& a, const Shape& b) {
  return std::ranges::equal(a.sizes(), b.sizes());
}

}  // namespace tessera
