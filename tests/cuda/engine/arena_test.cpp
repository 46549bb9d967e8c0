// The arena's free ranges, and its size as set in the environment.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "base/error.h"
#include "engine/cuda/settings.h"
#include "engine/places/free_ranges.h"

namespace tessera::cuda {
namespace {

TEST(FreeRanges, TakesTheSmallestThatFits) {
  FreeRanges ranges(1000);
  EXPECT_EQ(ranges.take(300), 0u);
  EXPECT_EQ(ranges.take(100), 300u);
  EXPECT_EQ(ranges.take(200), 400u);
  ranges.give_back(0, 300);  // free: [0, 300) and [600, 1000)
  EXPECT_EQ(ranges.take(50), 0u);
  EXPECT_EQ(ranges.take(250), 50u);
  EXPECT_EQ(ranges.take(401), std::nullopt);
  EXPECT_EQ(ranges.free_bytes(), 400u);
  EXPECT_EQ(ranges.largest(), 400u);
}

TEST(FreeRanges, MergesNeighboursOnBothSides) {
  FreeRanges ranges(400);
  for (int i = 0; i < 4; ++i) (void)ranges.take(100);
  EXPECT_EQ(ranges.largest(), 0u);
  ranges.give_back(0, 100);
  ranges.give_back(200, 100);
  EXPECT_EQ(ranges.largest(), 100u);
  ranges.give_back(100, 100);
  EXPECT_EQ(ranges.largest(), 300u);
  ranges.give_back(300, 100);
  EXPECT_EQ(ranges.take(400), 0u);
}

TEST(FreeRanges, RefusesRangesThatAreFree) {
  FreeRanges ranges(300);
  for (int i = 0; i < 3; ++i) (void)ranges.take(100);
  ranges.give_back(100, 100);
  EXPECT_THROW(ranges.give_back(100, 100), std::logic_error);
  EXPECT_THROW(ranges.give_back(50, 100), std::logic_error);
  EXPECT_THROW(ranges.give_back(150, 100), std::logic_error);
  EXPECT_EQ(ranges.free_bytes(), 100u);
}

TEST(FreeRanges, NeverHandsOutAByteTwice) {
  std::mt19937 random(301);
  FreeRanges ranges(100'000);
  std::map<std::size_t, std::size_t> held;
  std::size_t bytes = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (held.empty() || random() % 2 == 0) {
      const std::size_t size = 1 + random() % 5000;
      const auto offset = ranges.take(size);
      if (!offset) {
        ASSERT_LT(ranges.largest(), size);
        continue;
      }
      const auto next = held.lower_bound(*offset);
      ASSERT_TRUE(next == held.end() || *offset + size <= next->first);
      ASSERT_TRUE(next == held.begin() ||
                  std::prev(next)->first + std::prev(next)->second <= *offset);
      held[*offset] = size;
      bytes += size;
    } else {
      const auto part = std::next(held.begin(), static_cast<long>(random() % held.size()));
      ranges.give_back(part->first, part->second);
      bytes -= part->second;
      held.erase(part);
    }
    ASSERT_EQ(ranges.free_bytes(), 100'000 - bytes);
  }
  for (const auto& [offset, size] : held) ranges.give_back(offset, size);
  EXPECT_EQ(ranges.largest(), 100'000u);
}

class SettingsTest : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("TESSERA_CUDA_MEMORY"); }
  void TearDown() override { unsetenv("TESSERA_CUDA_MEMORY"); }
  static Settings read(const char* text) {
    setenv("TESSERA_CUDA_MEMORY", text, 1);
    return read_settings();
  }
};

TEST_F(SettingsTest, AreBytesOrAFraction) {
  EXPECT_EQ(read_settings().memory_bytes, std::nullopt);
  EXPECT_EQ(read_settings().memory_fraction, 0.9);
  EXPECT_EQ(read("123456").memory_bytes, 123456u);
  EXPECT_EQ(read("512M").memory_bytes, std::size_t{512} << 20);
  EXPECT_EQ(read("40G").memory_bytes, std::size_t{40} << 30);
  EXPECT_EQ(read("0.5").memory_fraction, 0.5);
  EXPECT_EQ(read("0.5").memory_bytes, std::nullopt);
}

TEST_F(SettingsTest, ThatAreInvalidAreNamed) {
  for (const char* text : {"", "0", "M", "12Q", "-5", "1.5", "0.0", "0.5G", "99999999999G", " 1"}) {
    try {
      (void)read(text);
      ADD_FAILURE() << '"' << text << "\" was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::configuration);
      EXPECT_NE(std::string(error.what()).find("TESSERA_CUDA_MEMORY"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace tessera::cuda
