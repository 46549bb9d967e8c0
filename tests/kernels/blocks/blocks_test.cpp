// Codecs of quantised blocks: the layouts of the bytes, the errors, and the same bytes on every
// instruction set.
#include "kernels/blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/low_precision.h"
#include "kernels/kernel_testing.h"

namespace tessera::kernels {
namespace {

using cpu::BlockCodec;

struct NamedCodec {
  const char* name;
  BlockCodec codec;
  // The root mean square for standard normal elements, as ggml's reference has it.
  double error;
};

std::vector<NamedCodec> codecs() {
  return {{"q8_0", cpu::q8_0_codec(), 0.0053467},
          {"q4_0", cpu::q4_0_codec(), 0.085868},
          {"q4_k", cpu::q4_k_codec(), 0.071265},
          {"q6_k", cpu::q6_k_codec(), 0.017751}};
}

std::vector<float> normal_values(std::int64_t n, float scale, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<std::byte> encoded(const BlockCodec& codec, const std::vector<float>& values) {
  const auto blocks = static_cast<std::int64_t>(values.size()) / codec.elements;
  std::vector<std::byte> bytes(static_cast<std::size_t>(blocks) * codec.bytes);
  EXPECT_TRUE(codec.encode(values.data(), bytes.data(), blocks));
  return bytes;
}

std::vector<float> decoded(const BlockCodec& codec, const std::vector<std::byte>& bytes) {
  const std::size_t blocks = bytes.size() / codec.bytes;
  std::vector<float> values(blocks * static_cast<std::size_t>(codec.elements));
  codec.decode(bytes.data(), values.data(), static_cast<std::int64_t>(blocks));
  return values;
}

double mean_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

int byte_at(const std::byte* bytes, std::size_t i) {
  return std::to_integer<int>(bytes[i]);
}
float half_at(const std::byte* bytes) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return to_float(Float16{bits});
}

// Element e of a block by its layout, in fp32 as ggml computes it.
float element_q4_k(const std::byte* block, std::size_t e) {
  const std::size_t group = e / 32;
  const std::byte* const f = block + 4;
  int factor = byte_at(f, group % 4);
  int shift = byte_at(f, group % 4 + 4);
  if (group < 4) {
    factor &= 63;
    shift &= 63;
  } else {
    factor = byte_at(f, group + 4) % 16 + factor / 64 * 16;
    shift = byte_at(f, group + 4) / 16 + shift / 64 * 16;
  }
  const int pair = byte_at(block + 16, e / 64 * 32 + e % 32);
  const int q = e % 64 < 32 ? pair % 16 : pair / 16;
  const float by = half_at(block) * static_cast<float>(factor);
  const float below = half_at(block + 2) * static_cast<float>(shift);
  return by * static_cast<float>(q) - below;
}

float element_q6_k(const std::byte* block, std::size_t e) {
  const std::size_t half = e / 128;
  const std::size_t in_half = e % 128;
  const int low = byte_at(block, half * 64 + in_half % 64) >> (in_half < 64 ? 0 : 4) & 15;
  const int high = byte_at(block, 128 + half * 32 + in_half % 32) >> (in_half / 32 * 2) & 3;
  const auto factor = static_cast<std::int8_t>(block[192 + e / 16]);
  return half_at(block + 208) * static_cast<float>(factor) *
         static_cast<float>((low | high << 4) - 32);
}

// Any bytes with finite scales are a block.
std::vector<std::byte> random_blocks(const BlockCodec& codec, std::size_t blocks,
                                     std::vector<std::size_t> scales) {
  std::mt19937 generator(5);
  std::vector<std::byte> bytes(blocks * codec.bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator() & 255);
  for (std::size_t b = 0; b < blocks; ++b) {
    for (const std::size_t at : scales) bytes[b * codec.bytes + at + 1] &= std::byte{0xbf};
  }
  return bytes;
}

TEST(Blocks, Q4KIsDecodedByItsLayout) {
  const BlockCodec codec = cpu::q4_k_codec();
  const auto bytes = random_blocks(codec, 9, {0, 2});
  testing::for_each_target([&] {
    const std::vector<float> values = decoded(codec, bytes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], element_q4_k(bytes.data() + i / 256 * codec.bytes, i % 256)) << i;
    }
  });
}

TEST(Blocks, Q6KIsDecodedByItsLayout) {
  const BlockCodec codec = cpu::q6_k_codec();
  const auto bytes = random_blocks(codec, 9, {208});
  testing::for_each_target([&] {
    const std::vector<float> values = decoded(codec, bytes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], element_q6_k(bytes.data() + i / 256 * codec.bytes, i % 256)) << i;
    }
  });
}

TEST(Blocks, ErrorsAreNotAboveThoseOfTheReference) {
  for (const NamedCodec& each : codecs()) {
    for (const float scale : {1.0f, 0.02f, 3000.0f}) {
      const auto values = normal_values(1 << 16, scale, 11);
      const double error = mean_error(values, decoded(each.codec, encoded(each.codec, values)));
      EXPECT_LE(error / scale, each.error * 1.01) << each.name << " " << scale;
      EXPECT_GE(error / scale, each.error * 0.9) << each.name << " " << scale;
    }
  }
}

TEST(Blocks, InstructionSetsGiveTheSameBytes) {
  for (const NamedCodec& each : codecs()) {
    auto values = normal_values(1 << 14, 0.02f, 13);
    for (std::size_t i = 0; i < 4096; ++i) values[i] = std::fabs(values[i]) - 1.0f;
    for (std::size_t i = 4096; i < 8192; ++i) values[i] = i % 40 == 0 ? values[i] : 0.0f;
    std::vector<std::byte> first;
    std::vector<float> first_values;
    testing::for_each_target([&] {
      const std::vector<std::byte> bytes = encoded(each.codec, values);
      const std::vector<float> result = decoded(each.codec, bytes);
      if (first.empty()) {
        first = bytes;
        first_values = result;
      }
      EXPECT_TRUE(bytes == first) << each.name;
      EXPECT_EQ(std::memcmp(result.data(), first_values.data(), result.size() * 4), 0) << each.name;
    });
  }
}

// A block depends on its own elements alone.
TEST(Blocks, BlocksAreIndependent) {
  for (const NamedCodec& each : codecs()) {
    const auto values = normal_values(4 * each.codec.elements, 1.0f, 17);
    const std::vector<std::byte> whole = encoded(each.codec, values);
    for (std::int64_t b = 0; b < 4; ++b) {
      const std::vector<float> part(values.begin() + b * each.codec.elements,
                                    values.begin() + (b + 1) * each.codec.elements);
      const std::vector<std::byte> alone = encoded(each.codec, part);
      EXPECT_EQ(std::memcmp(alone.data(), whole.data() + static_cast<std::size_t>(b) * alone.size(),
                            alone.size()),
                0)
          << each.name << " block " << b;
    }
  }
}

TEST(Blocks, EqualElementsAndZerosKeepTheirValues) {
  for (const NamedCodec& each : codecs()) {
    for (const float value : {0.0f, -0.25f, 0.5f, 1e-30f}) {
      const std::vector<float> values(static_cast<std::size_t>(each.codec.elements), value);
      for (const float result : decoded(each.codec, encoded(each.codec, values))) {
        EXPECT_NEAR(result, value, std::fabs(value) * 0.005 + 1e-9) << each.name;
      }
    }
  }
}

// One element decides the range of its group, and the others of its block keep theirs.
TEST(Blocks, AnExtremeInAGroupLeavesTheOtherGroups) {
  for (const NamedCodec& each : codecs()) {
    if (each.codec.elements != 256) continue;
    auto values = normal_values(256, 0.02f, 19);
    values[7] = -2.0f;
    const auto result = decoded(each.codec, encoded(each.codec, values));
    EXPECT_NEAR(result[7], -2.0f, 0.05) << each.name;
    for (std::size_t i = 32; i < 256; ++i) {
      EXPECT_NEAR(result[i], values[i], each.name == std::string("q4_k") ? 0.05 : 0.02) << i;
    }
  }
}

TEST(Blocks, ValuesThatNoScaleHoldsAreRefused) {
  for (const NamedCodec& each : codecs()) {
    std::vector<std::byte> bytes(each.codec.bytes);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(), -1e30f,
          3e38f, 1e12f}) {
      for (const std::int64_t at : {std::int64_t{0}, each.codec.elements - 1}) {
        std::vector<float> values(static_cast<std::size_t>(each.codec.elements), 1.0f);
        values[static_cast<std::size_t>(at)] = bad;
        EXPECT_FALSE(each.codec.encode(values.data(), bytes.data(), 1)) << each.name << " " << bad;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels
