// What a low-rank adapter is made of, as a recipe or an adapter's file says it: no more than
// values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::nn {

// Above every layer's width; what is more is a mistake.
inline constexpr std::int64_t max_lora_rank = 1 << 20;

// A low-rank adapter (LoRA): the layer's result plus scaling() * B(A(dropout(x))). Which layers of
// a module get one is engine/nn/lora.h's to say.
struct LoraOptions {
  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;   // of what goes into A
  bool rslora = false;  // divides by the root of the rank, which suits large ones
  // A layer is meant by its name ("layers.0.q_proj") or by its name's end after a dot ("q_proj").
  std::vector<std::string> target_modules = {};
  // Instead: a regular expression for the whole name, or "all-linear": all but one called lm_head.
  std::string target_pattern = {};

  [[nodiscard]] double scaling() const;
  // Whether fp32 has scaling().
  [[nodiscard]] bool can_scale() const;
};

}  // namespace tessera::nn
