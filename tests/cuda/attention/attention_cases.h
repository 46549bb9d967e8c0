// The sizes and options of the attention problems for the tests of the GPU's kernels.
#pragma once

#include <cstdint>

namespace tessera::testing {

struct AttentionCase {
  const char* about;
  std::int64_t heads = 2, key_heads = 2, head_dim = 64, queries = 40, keys = 40;
  bool mask = false;
  float dropout = 0;
  bool packed = false;       // q, k and v side by side in one array's rows
  std::int64_t padding = 8;  // unused elements between rows
  double deviation = 1;      // of the queries
  std::int64_t batch = 1;
  std::int64_t window = 0;
  std::int64_t document = 0;  // the length of documents; in sample b the first has b keys less
  float soft_cap = 0;

  // True if the kernels on tensor cores accept the problem, for 16-bit types.
  [[nodiscard]] bool on_tensor_cores() const {
    return head_dim % 8 == 0 && head_dim <= 128 && padding % 8 == 0;
  }
};

inline constexpr AttentionCase attention_cases[] = {
    {.about = "one tile", .head_dim = 32},
    {.about = "several tiles",
     .heads = 1,
     .key_heads = 1,
     .head_dim = 64,
     .queries = 100,
     .keys = 100},
    {.about = "one element a head", .heads = 8, .head_dim = 32, .queries = 1, .keys = 1},
    {.about = "packed",
     .head_dim = 48,
     .queries = 65,
     .keys = 65,
     .packed = true,
     .padding = 0,
     .batch = 2},
    {.about = "grouped keys", .heads = 4, .head_dim = 32, .queries = 40, .keys = 70},
    {.about = "one key head, packed",
     .heads = 3,
     .key_heads = 1,
     .head_dim = 32,
     .packed = true,
     .padding = 0},
    {.about = "more keys", .heads = 1, .key_heads = 1, .head_dim = 128, .queries = 33, .keys = 100},
    {.about = "more queries",
     .heads = 1,
     .key_heads = 1,
     .head_dim = 32,
     .queries = 100,
     .keys = 30},
    {.about = "mask", .head_dim = 64, .queries = 70, .keys = 90, .mask = true, .batch = 2},
    {.about = "dropout", .head_dim = 96, .queries = 50, .keys = 72, .dropout = 0.25f},
    {.about = "dropout, draws that straddle blocks",
     .key_heads = 1,
     .head_dim = 40,
     .queries = 37,
     .keys = 71,
     .mask = true,
     .dropout = 0.4f,
     .batch = 2},
    {.about = "dropout, large head",
     .heads = 1,
     .key_heads = 1,
     .head_dim = 128,
     .queries = 40,
     .keys = 75,
     .dropout = 0.1f},
    {.about = "large scores",
     .heads = 1,
     .key_heads = 1,
     .head_dim = 64,
     .queries = 40,
     .keys = 150,
     .deviation = 20},
    {.about = "odd head",
     .heads = 4,
     .head_dim = 20,
     .queries = 45,
     .keys = 67,
     .mask = true,
     .dropout = 0.3f,
     .batch = 2},
    {.about = "rows off 16 bytes", .head_dim = 32, .padding = 3},
    {.about = "head of several panels",
     .heads = 1,
     .key_heads = 1,
     .head_dim = 150,
     .queries = 40,
     .keys = 35}};

// With a causal mask only.
inline constexpr AttentionCase attention_variants[] = {
    {.about = "window", .head_dim = 64, .queries = 150, .keys = 150, .window = 20},
    {.about = "window of one",
     .heads = 1,
     .key_heads = 1,
     .head_dim = 32,
     .queries = 70,
     .keys = 70,
     .window = 1},
    {.about = "window, more keys",
     .key_heads = 1,
     .head_dim = 128,
     .queries = 50,
     .keys = 210,
     .dropout = 0.2f,
     .window = 64},
    {.about = "window, more queries",
     .heads = 1,
     .key_heads = 1,
     .head_dim = 32,
     .queries = 100,
     .keys = 30,
     .window = 7},
    {.about = "documents", .head_dim = 96, .queries = 140, .keys = 140, .batch = 2, .document = 33},
    {.about = "documents and a window, packed",
     .head_dim = 48,
     .queries = 130,
     .keys = 130,
     .mask = true,
     .dropout = 0.25f,
     .packed = true,
     .padding = 0,
     .batch = 2,
     .window = 21,
     .document = 64},
    {.about = "cap", .head_dim = 64, .queries = 70, .keys = 90, .deviation = 3, .soft_cap = 2},
    {.about = "all, odd head",
     .heads = 1,
     .key_heads = 1,
     .head_dim = 20,
     .queries = 75,
     .keys = 75,
     .window = 40,
     .document = 50,
     .soft_cap = 5},
    {.about = "window and cap, head of several panels",
     .heads = 1,
     .key_heads = 1,
     .head_dim = 150,
     .queries = 40,
     .keys = 70,
     .window = 10,
     .soft_cap = 3}};

}  // namespace tessera::testing
