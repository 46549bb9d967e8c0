// The map of 8-bit codes, and AdamW on them, compared with scalar steps bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/eight_bit.h"
#include "base/parallel.h"
#include "kernels/kernel_testing.h"
#include "kernels/registry.h"

namespace tessera::kernels {
namespace {

using testing::narrow;
using testing::same_bits;
using testing::to_compute;

constexpr double eight_bit_rate = 3e-3, eight_bit_first_beta = 0.9, eight_bit_second_beta = 0.99,
                 eight_bit_epsilon = 1e-8, eight_bit_decay = 0.1;
constexpr float eight_bit_grad_factor = 0.25f;

TEST(EightBitMap, HasTheValuesOfBitsandbytes) {
  const auto with_sign = signed_eight_bit_map().values();
  const auto without = unsigned_eight_bit_map().values();
  EXPECT_EQ(signed_eight_bit_map().count, 129);
  EXPECT_EQ(unsigned_eight_bit_map().count, 256);
  // create_dynamic_map(True) and (False) of bitsandbytes 0.50.
  EXPECT_FLOAT_EQ(with_sign[0], -0.9929688f);
  EXPECT_FLOAT_EQ(with_sign[126], -5.5e-7f);
  EXPECT_EQ(with_sign[127], 0.0f);
  EXPECT_FLOAT_EQ(with_sign[129], 3.25e-6f);
  EXPECT_EQ(with_sign[255], 1.0f);
  EXPECT_EQ(without[0], 0.0f);
  EXPECT_FLOAT_EQ(without[1], 3.25e-7f);
  EXPECT_FLOAT_EQ(without[3], 2.125e-6f);
  EXPECT_FLOAT_EQ(without[254], 0.99648438f);
  EXPECT_EQ(without[255], 1.0f);
  EXPECT_TRUE(std::is_sorted(with_sign.begin(), with_sign.end()));
  EXPECT_TRUE(std::is_sorted(without.begin(), without.end()));
}

TEST(EightBitMap, CodesAreTheNearest) {
  std::mt19937 generator(1);
  std::normal_distribution<float> distribution;
  for (const EightBitMap* map : {&signed_eight_bit_map(), &unsigned_eight_bit_map()}) {
    std::vector<float> numbers(eight_bit_block), back(eight_bit_block);
    std::vector<std::uint8_t> codes(eight_bit_block);
    for (float& number : numbers) {
      const float drawn = distribution(generator);
      number = map->is_signed ? drawn * drawn * drawn : std::pow(drawn, 8.0f);
    }
    const float scale = encode_eight_bit(*map, numbers.data(), eight_bit_block, codes.data());
    decode_eight_bit(*map, codes.data(), scale, eight_bit_block, back.data());
    const auto values = map->values();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      float nearest = std::numeric_limits<float>::infinity();
      for (const float value : values) {
        if (!map->is_signed && value == 0 && numbers[i] > 0) continue;
        nearest = std::min(nearest, std::fabs(value - numbers[i] / scale));
      }
      EXPECT_LE(std::fabs(back[i] - numbers[i]), scale * (nearest + 1e-7f)) << numbers[i];
    }
  }
}

template <class Grad>
struct Run8Bit {
  std::vector<float> param, m_scales, v_scales;
  std::vector<std::uint8_t> m_codes, v_codes;
  std::vector<Grad> grad;

  explicit Run8Bit(std::int64_t n)
      : param(static_cast<std::size_t>(n)),
        m_scales(static_cast<std::size_t>((n + eight_bit_block - 1) / eight_bit_block)),
        v_scales(m_scales.size()),
        m_codes(param.size()),
        v_codes(param.size()),
        grad(param.size()) {
    std::mt19937 generator(1);
    std::normal_distribution<float> distribution;
    for (float& value : param) value = distribution(generator);
  }
  // Magnitudes of seven decades; every seventh gradient is 0.
  void draw_gradient(int step) {
    std::mt19937 generator(100u + static_cast<unsigned>(step));
    std::normal_distribution<double> distribution;
    std::uniform_real_distribution<double> exponent(-4.0, 0.0);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const double drawn = distribution(generator) * std::pow(10.0, exponent(generator));
      grad[i] = narrow<Grad>(i % 7 == 0 ? 0.0 : drawn);
    }
  }
  AdamW8BitStep call(std::int64_t first, std::int64_t n, int step) {
    return {.param = param.data() + first,
            .grad = grad.data() + first,
            .m_codes = m_codes.data() + first,
            .v_codes = v_codes.data() + first,
            .m_scales = m_scales.data() + first / eight_bit_block,
            .v_scales = v_scales.data() + first / eight_bit_block,
            .n = n,
            .grad_dtype = dtype_of<Grad>,
            .lr = eight_bit_rate,
            .beta1 = eight_bit_first_beta,
            .beta2 = eight_bit_second_beta,
            .eps = eight_bit_epsilon,
            .weight_decay = eight_bit_decay,
            .correction1 = 1 - std::pow(eight_bit_first_beta, step),
            .correction2 = 1 - std::pow(eight_bit_second_beta, step),
            .grad_scale = eight_bit_grad_factor};
  }
  // The formula of the contract with numbers of whole blocks.
  void reference(int step) {
    const AdamW8BitStep a = call(0, 0, step);
    const auto b1 = static_cast<float>(a.beta1), b2 = static_cast<float>(a.beta2);
    const auto rest1 = static_cast<float>(1 - a.beta1), rest2 = static_cast<float>(1 - a.beta2);
    const auto lr = static_cast<float>(a.lr / a.correction1);
    const auto root = static_cast<float>(std::sqrt(a.correction2));
    const auto shrink = static_cast<float>(a.lr * a.weight_decay);
    for (std::size_t block = 0; block < m_scales.size(); ++block) {
      const std::size_t first = block * eight_bit_block;
      const std::size_t count = std::min<std::size_t>(eight_bit_block, param.size() - first);
      std::vector<float> m(count), v(count);
      decode_eight_bit(signed_eight_bit_map(), &m_codes[first], m_scales[block],
                       static_cast<std::int64_t>(count), m.data());
      decode_eight_bit(unsigned_eight_bit_map(), &v_codes[first], v_scales[block],
                       static_cast<std::int64_t>(count), v.data());
      for (std::size_t i = 0; i < count; ++i) {
        const float g = static_cast<float>(to_compute(grad[first + i])) * eight_bit_grad_factor;
        float& p = param[first + i];
        p -= shrink * p;
        m[i] = b1 * m[i] + rest1 * g;
        v[i] = b2 * v[i] + rest2 * g * g;
        p -= lr * m[i] / (std::sqrt(v[i]) / root + static_cast<float>(eight_bit_epsilon));
      }
      m_scales[block] = encode_eight_bit(signed_eight_bit_map(), m.data(),
                                         static_cast<std::int64_t>(count), &m_codes[first]);
      v_scales[block] = encode_eight_bit(unsigned_eight_bit_map(), v.data(),
                                         static_cast<std::int64_t>(count), &v_codes[first]);
    }
  }
  [[nodiscard]] bool equals(const Run8Bit& other) const {
    return same_bits(param, other.param) && same_bits(m_codes, other.m_codes) &&
           same_bits(v_codes, other.v_codes) && same_bits(m_scales, other.m_scales) &&
           same_bits(v_scales, other.v_scales);
  }
};

template <class Grad>
void check_8bit() {
  for (const std::int64_t n : {1, 5, 255, 256, 257, 1000, 2049}) {
    Run8Bit<Grad> got(n), want(n);
    for (int step = 1; step <= 5; ++step) {
      got.draw_gradient(step);
      want.draw_gradient(step);
      cpu::adamw_8bit_step(got.call(0, n, step));
      want.reference(step);
      ASSERT_TRUE(got.equals(want)) << n << " elements at step " << step;
    }
  }
}

TEST(AdamW8Bit, EveryTypeBitForBit) {
  check_8bit<float>();
  check_8bit<BFloat16>();
  check_8bit<Float16>();
}

TEST(AdamW8Bit, CutsBetweenBlocksAndThreadsChangeNoBit) {
  constexpr std::int64_t n = 70001;
  Run8Bit<float> whole(n);
  whole.draw_gradient(1);
  const auto start = whole;
  const int threads = compute_threads();
  set_compute_threads(1);
  cpu::adamw_8bit_step(whole.call(0, n, 1));
  for (const int workers : {1, 3}) {
    set_compute_threads(workers);
    for (const std::int64_t cut : {256, 33280, 69888}) {
      auto parts = start;
      cpu::adamw_8bit_step(parts.call(cut, n - cut, 1));
      cpu::adamw_8bit_step(parts.call(0, cut, 1));
      EXPECT_TRUE(parts.equals(whole)) << cut;
    }
  }
  set_compute_threads(threads);
}

TEST(AdamW8Bit, DecaysInItsRangesOnly) {
  constexpr std::int64_t n = 2049;
  Run8Bit<float> table(n), pieces(n);
  table.draw_gradient(1);
  pieces.draw_gradient(1);
  AdamW8BitStep step = table.call(0, n, 1);
  const std::int64_t edges[] = {256, 1024, 2048};
  step.decay = {edges, 3};
  cpu::adamw_8bit_step(step);
  const std::int64_t ends[] = {0, 256, 1024, 2048, n};
  for (int i = 0; i < 4; ++i) {
    AdamW8BitStep part = pieces.call(ends[i], ends[i + 1] - ends[i], 1);
    if (i % 2 == 0) part.weight_decay = 0;
    cpu::adamw_8bit_step(part);
  }
  EXPECT_TRUE(table.equals(pieces));
}

// A second moment that became 0 would make the step of an element without a gradient huge.
TEST(AdamW8Bit, ASmallSecondMomentDoesNotVanish) {
  Run8Bit<float> run(256);
  run.grad.assign(256, 1e-6f);
  run.grad[0] = 1.0f;
  cpu::adamw_8bit_step(run.call(0, 256, 1));
  EXPECT_EQ(run.v_codes[1], 1);
  const float before = run.param[1];
  run.grad.assign(256, 0.0f);
  cpu::adamw_8bit_step(run.call(0, 256, 2));
  EXPECT_NEAR(run.param[1], before, 0.01f);
}

// A number that is not finite stays visible: the moments of its block become NaN.
TEST(AdamW8Bit, NaNStaysVisible) {
  for (const float broken : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Run8Bit<float> run(600);
    run.draw_gradient(1);
    run.grad[300] = broken;
    cpu::adamw_8bit_step(run.call(0, 600, 1));
    EXPECT_TRUE(std::isnan(run.param[300]));
    EXPECT_TRUE(std::isnan(run.m_scales[1]) && std::isnan(run.v_scales[1]));
    EXPECT_FALSE(std::isnan(run.m_scales[0]) || std::isnan(run.v_scales[2]));
    run.draw_gradient(2);
    cpu::adamw_8bit_step(run.call(0, 600, 2));
    EXPECT_TRUE(std::isnan(run.param[300]) && std::isnan(run.param[256]));
    EXPECT_FALSE(std::isnan(run.param[255]) || std::isnan(run.param[512]));
  }
}

TEST(AdamW8Bit, TypesAndEdgesAreChecked) {
  Run8Bit<float> run(600);
  AdamW8BitStep step = run.call(0, 600, 1);
  step.grad_dtype = float64;
  EXPECT_THROW(cpu::adamw_8bit_step(step), std::logic_error);
  step = run.call(0, 600, 1);
  const std::int64_t edge = 100;
  step.decay = {&edge, 1};
  EXPECT_THROW(cpu::adamw_8bit_step(step), std::logic_error);
}

}  // namespace
}  // namespace tessera::kernels
