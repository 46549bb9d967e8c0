// An array on the host and on the device, for the CPU's kernel and the GPU's.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/kernel_testing.h"

namespace tessera::testing {

// Both copies begin `offset` elements into their memory, which ends where the array ends; the
// elements before it must not change.
class MirroredArray {
 public:
  MirroredArray(const std::vector<double>& values, DType dtype, std::size_t offset = 0)
      : MirroredArray(encode(values, dtype), dtype, offset) {}
  MirroredArray(const std::vector<std::byte>& contents, DType dtype, std::size_t offset = 0)
      : dtype_(dtype),
        front_(offset * size_of(dtype)),
        host_(with_front(contents, front_)),
        device_(host_) {}

  [[nodiscard]] void* host() { return host_.data() + front_; }
  [[nodiscard]] void* device() { return device_.as<std::byte>() + front_; }
  [[nodiscard]] DType dtype() const { return dtype_; }

  // The device's contents; fails if the elements before the array changed.
  [[nodiscard]] std::vector<std::byte> device_bytes() const {
    const std::vector<std::byte> all = device_.read();
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(front_);
    EXPECT_TRUE(std::all_of(all.begin(), begin, [](std::byte b) { return b == front_byte; }));
    return {begin, all.end()};
  }
  [[nodiscard]] std::vector<double> device_values() const { return decode(device_bytes(), dtype_); }
  [[nodiscard]] std::vector<std::byte> host_bytes() const {
    return {host_.begin() + static_cast<std::ptrdiff_t>(front_), host_.end()};
  }
  [[nodiscard]] std::vector<double> host_values() const { return decode(host_bytes(), dtype_); }

  // Expects the same bits on both sides.
  void expect_same(const std::string& kernel, const std::string& output) const {
    const std::vector<std::byte> device = device_bytes();
    expect_equal(kernel, output, dtype_, decode(device, dtype_), host_values());
    EXPECT_TRUE(device == host_bytes()) << kernel << " " << output << " " << name_of(dtype_);
  }

 private:
  static constexpr std::byte front_byte{0x5a};
  static std::vector<std::byte> with_front(const std::vector<std::byte>& contents,
                                           std::size_t front) {
    std::vector<std::byte> all(front, front_byte);
    all.insert(all.end(), contents.begin(), contents.end());
    return all;
  }

  DType dtype_;
  std::size_t front_;
  std::vector<std::byte> host_;
  DeviceMemory device_;
};

// Lengths with whole groups of every width, with tails, and zero; starts on and off vector
// boundaries.
inline constexpr std::size_t array_lengths[] = {0, 1, 7, 64, 1003};
inline constexpr std::size_t array_offsets[] = {0, 1, 3};

}  // namespace tessera::testing
