// The options of a low-rank adapter, as a recipe or an adapter's file gives them. Only values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tessera::nn {

// Larger than every layer's width; a larger rank is a mistake.
inline constexpr std::int64_t max_lora_rank = 1 << 20;

// A low-rank adapter (LoRA): the layer's result plus scaling() * B(A(dropout(x))). engine/nn/lora.h
// selects the layers that get one.
struct LoraOptions {
  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;   // of the input of A
  bool rslora = false;  // divides by the root of the rank; better for large ranks
  // DoRA (arXiv:2402.09353): each row of W + scaling() * B A is divided by its Euclidean norm,
  // which is a constant for gradients, and multiplied by a trained magnitude.
  bool dora = false;
  // Selects a layer by its name ("layers.0.q_proj") or by the end of its name after a dot
  // ("q_proj").
  std::vector<std::string> target_modules = {};
  // Alternative: a regular expression for the whole name, or "all-linear": all but the head
  // (engine/nn/output_head.h).
  std::string target_pattern = {};

  // Layers with another rank or alpha. A pattern is a regular expression for a whole name, or for
  // its end after a dot, as in PEFT.
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};

  // Modules that are trained whole beside the adapters: those whose names end with one of these, at
  // any letter, as in PEFT: "head" selects "lm_head".
  std::vector<std::string> modules_to_save = {};

  // These options with the rank and alpha of one layer. Error(configuration) if patterns give it
  // different values, or its factor is not finite in fp32.
  [[nodiscard]] LoraOptions of_layer(const std::string& layer) const;
  [[nodiscard]] double scaling() const;
  // True if scaling() is a finite fp32 number.
  [[nodiscard]] bool can_scale() const;
};

}  // namespace tessera::nn
