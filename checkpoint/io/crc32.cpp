// CRC-32 over the polynomial 0xEDB88320: eight bytes at a time by tables, or 64 bytes at a time if
// the processor has carry-less multiplication.
#include "checkpoint/io/crc32.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::checkpoint::formats {

namespace {

using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables crc_tables = [] {
  CrcTables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
    tables[0][i] = crc;
  }
  for (std::size_t t = 1; t < 8; ++t) {
    for (std::size_t i = 0; i < 256; ++i) {
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xff];
    }
  }
  return tables;
}();

static_assert(std::endian::native == std::endian::little);

std::uint32_t crc_by_tables(std::uint32_t crc, const unsigned char* in, std::size_t bytes) {
  const CrcTables& t = crc_tables;
  for (; bytes >= 8; in += 8, bytes -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, in, 8);
    word ^= crc;
    crc = t[7][word & 0xff] ^ t[6][(word >> 8) & 0xff] ^ t[5][(word >> 16) & 0xff] ^
          t[4][(word >> 24) & 0xff] ^ t[3][(word >> 32) & 0xff] ^ t[2][(word >> 40) & 0xff] ^
          t[1][(word >> 48) & 0xff] ^ t[0][word >> 56];
  }
  for (; bytes > 0; ++in, --bytes) crc = (crc >> 8) ^ t[0][(crc ^ *in) & 0xff];
  return crc;
}

#if defined(__x86_64__)

// x^shift modulo the polynomial, in the reflected order of the carry-less products below.
constexpr std::uint64_t power_of_x(unsigned shift) {
  std::uint32_t value = 0x80000000u;  // x^0
  for (unsigned i = 0; i < shift; ++i) {
    value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320u : 0u);
  }
  return std::uint64_t{value} << 1;
}

// Moves a remainder of 128 bits `k` bits ahead and adds the bits at that place.
__attribute__((target("pclmul,sse4.1"))) __m128i fold(__m128i value, __m128i k, __m128i next) {
  const __m128i low = _mm_clmulepi64_si128(value, k, 0x00);
  const __m128i high = _mm_clmulepi64_si128(value, k, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// `bytes` is a multiple of 64 and not 0.
__attribute__((target("pclmul,sse4.1"))) std::uint32_t crc_by_products(std::uint32_t crc,
                                                                       const unsigned char* in,
                                                                       std::size_t bytes) {
  const auto load = [&](std::size_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + i);
  };
  constexpr std::uint64_t by_512_high = power_of_x(512 - 32);
  constexpr std::uint64_t by_512_low = power_of_x(512 + 32);
  constexpr std::uint64_t by_128_high = power_of_x(128 - 32);
  constexpr std::uint64_t by_128_low = power_of_x(128 + 32);
  const __m128i by_512 = _mm_set_epi64x(by_512_high, by_512_low);
  const __m128i by_128 = _mm_set_epi64x(by_128_high, by_128_low);
  __m128i a = _mm_xor_si128(load(0), _mm_cvtsi32_si128(static_cast<int>(crc)));
  __m128i b = load(1);
  __m128i c = load(2);
  __m128i d = load(3);
  for (in += 64, bytes -= 64; bytes > 0; in += 64, bytes -= 64) {
    a = fold(a, by_512, load(0));
    b = fold(b, by_512, load(1));
    c = fold(c, by_512, load(2));
    d = fold(d, by_512, load(3));
  }
  a = fold(fold(fold(a, by_128, b), by_128, c), by_128, d);
  // The remainder of the last 128 bits is the result.
  std::array<unsigned char, 16> rest{};
  _mm_storeu_si128(reinterpret_cast<__m128i*>(rest.data()), a);
  return crc_by_tables(0, rest.data(), rest.size());
}

bool has_products() {
  return __builtin_cpu_supports("pclmul") != 0 && __builtin_cpu_supports("sse4.1") != 0;
}

#endif

}  // namespace

std::uint32_t crc32(std::uint32_t before, const void* data, std::size_t bytes) {
  const auto* in = static_cast<const unsigned char*>(data);
  std::uint32_t crc = ~before;
#if defined(__x86_64__)
  if (const std::size_t whole = bytes & ~std::size_t{63}; whole > 0 && has_products()) {
    crc = crc_by_products(crc, in, whole);
    in += whole;
    bytes -= whole;
  }
#endif
  return ~crc_by_tables(crc, in, bytes);
}

}  // namespace tessera::checkpoint::formats
