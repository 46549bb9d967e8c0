// Every differentiable op, by name. tests/engine/gradient_check_test.cpp fails if no gradient check
// reaches an op. `custom` stands for an op of a floor above or of a program.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string_view>

namespace tessera {

#define TESSERA_DIFFERENTIABLE_OPS(X) \
  X(add)                              \
  X(subtract)                         \
  X(multiply)                         \
  X(divide)                           \
  X(affine)                           \
  X(unary)                            \
  X(cast)                             \
  X(reshape)                          \
  X(concatenate)                      \
  X(sum)                              \
  X(softmax)                          \
  X(matmul)                           \
  X(linear)                           \
  X(bias_gelu_linear)                 \
  X(swiglu_linear)                    \
  X(grouped_linear)                   \
  X(grouped_swiglu_linear)            \
  X(combine_rows)                     \
  X(embedding)                        \
  X(norm)                             \
  X(add_norm)                         \
  X(dropout)                          \
  X(rotary)                           \
  X(attention)                        \
  X(packed_attention)                 \
  X(sequence_attention)               \
  X(sequence_dropout)                 \
  X(pool_sequences)                   \
  X(normalize_rows)                   \
  X(cross_entropy)                    \
  X(linear_cross_entropy)             \
  X(permute)                          \
  X(slice)                            \
  X(split)                            \
  X(expand)                           \
  X(pad)                              \
  X(pointwise)                        \
  X(where)                            \
  X(reduce)                           \
  X(cumulative_sum)                   \
  X(gather)                           \
  X(scatter_add)                      \
  X(convolution)                      \
  X(recompute)                        \
  X(custom)

enum class Op : std::uint8_t {
#define TESSERA_OP_ENUMERATOR(name) name,
  TESSERA_DIFFERENTIABLE_OPS(TESSERA_OP_ENUMERATOR)
#undef TESSERA_OP_ENUMERATOR
};

inline constexpr Op all_ops[] = {
#define TESSERA_OP_VALUE(name) Op::name,
    TESSERA_DIFFERENTIABLE_OPS(TESSERA_OP_VALUE)
#undef TESSERA_OP_VALUE
};

constexpr std::string_view name_of(Op op) {
  constexpr std::string_view names[] = {
#define TESSERA_OP_NAME(name) #name,
      TESSERA_DIFFERENTIABLE_OPS(TESSERA_OP_NAME)
#undef TESSERA_OP_NAME
  };
  return names[static_cast<std::size_t>(op)];
}

class OpSet {
 public:
  constexpr OpSet() = default;
  constexpr OpSet(std::initializer_list<Op> ops) {
    for (const Op op : ops) bits_ |= bit(op);
  }
  [[nodiscard]] constexpr bool contains(Op op) const { return (bits_ & bit(op)) != 0; }
  friend constexpr bool operator==(OpSet, OpSet) = default;

 private:
  static constexpr std::uint64_t bit(Op op) {
    return std::uint64_t{1} << static_cast<unsigned>(op);
  }
  static_assert(std::size(all_ops) <= 64);
  std::uint64_t bits_ = 0;
};

}  // namespace tessera
