// Tensor operations. Each is differentiable (engine/op_list.h) unless its comment says otherwise.
// Each checks shapes and dtypes and throws a std::logic_error that names the op, the shapes and
// dtypes, and the module whose call is open. Arithmetic is fp32 for every storage dtype (fp64 for
// fp64; numbers beside tensors, as eps, scale, soft_cap and p, are rounded to fp32 before).
// Integers are for ids, targets and masks; cast() converts them for arithmetic.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "engine/tensor.h"
#include "kernels/elementwise.h"
#include "kernels/pooling.h"

namespace tessera {

// a op b, with NumPy's broadcasting: shapes are aligned at their ends, and a size of 1 or a missing
// dimension repeats. It is fastest if b has a's shape, is a suffix of it (a bias, a table of
// positions), or has one element.
Tensor add(const Tensor& a, const Tensor& b);
Tensor subtract(const Tensor& a, const Tensor& b);
Tensor multiply(const Tensor& a, const Tensor& b);
Tensor divide(const Tensor& a, const Tensor& b);
// x * scale + shift.
Tensor affine(const Tensor& x, double scale, double shift = 0);

inline Tensor operator+(const Tensor& a, const Tensor& b) {
  return add(a, b);
}
inline Tensor operator-(const Tensor& a, const Tensor& b) {
  return subtract(a, b);
}
inline Tensor operator*(const Tensor& a, const Tensor& b) {
  return multiply(a, b);
}
inline Tensor operator/(const Tensor& a, const Tensor& b) {
  return divide(a, b);
}
// With a number, in x's dtype. Division by a number multiplies by 1 / divisor.
Tensor operator-(const Tensor& x);
Tensor operator+(const Tensor& x, double shift);
Tensor operator-(const Tensor& x, double shift);
Tensor operator*(const Tensor& x, double scale);
Tensor operator/(const Tensor& x, double divisor);
Tensor operator+(double shift, const Tensor& x);
Tensor operator-(double from, const Tensor& x);
Tensor operator*(double scale, const Tensor& x);
Tensor operator/(double dividend, const Tensor& x);

Tensor unary(kernels::UnaryOp op, const Tensor& x);
inline Tensor relu(const Tensor& x) {
  return unary(kernels::UnaryOp::relu, x);
}
inline Tensor tanh(const Tensor& x) {
  return unary(kernels::UnaryOp::tanh, x);
}
inline Tensor sigmoid(const Tensor& x) {
  return unary(kernels::UnaryOp::sigmoid, x);
}
inline Tensor silu(const Tensor& x) {
  return unary(kernels::UnaryOp::silu, x);
}
inline Tensor exp(const Tensor& x) {
  return unary(kernels::UnaryOp::exp, x);
}
inline Tensor log(const Tensor& x) {
  return unary(kernels::UnaryOp::log, x);
}
inline Tensor sqrt(const Tensor& x) {
  return unary(kernels::UnaryOp::sqrt, x);
}
inline Tensor square(const Tensor& x) {
  return unary(kernels::UnaryOp::square, x);
}
// exact: the form with the error function; otherwise the tanh approximation that GPT-2 uses.
Tensor gelu(const Tensor& x, bool exact = true);

Tensor cast(const Tensor& x, DType dtype);
// The same memory in another shape with the same number of elements.
Tensor reshape(const Tensor& x, const Shape& shape);
// One size may be -1: it is computed from the others.
Tensor reshape(const Tensor& x, std::initializer_list<std::int64_t> sizes);
// Joins the parts along dimension 0. Their other dimensions, dtypes and devices must be equal.
Tensor concatenate(std::initializer_list<Tensor> parts);
Tensor sum(const Tensor& x);      // to one element
Tensor mean(const Tensor& x);     // to one element
Tensor softmax(const Tensor& x);  // over the last dimension

// [..., m, k] x [..., k, n]: the dimensions before the matrices broadcast. A vector on the left is
// a row, on the right a column, and the result lacks that dimension. engine/tensor_ops.h has
// transposed factors.
Tensor matmul(const Tensor& a, const Tensor& b);

// The layout of a linear layer's weight: torch.nn.Linear's [out, in], or GPT-2's Conv1D [in, out].
enum class WeightLayout : std::uint8_t { out_in, in_out };

// x[..., in] W (+ bias[out]). x may have any floating dtype and is cast to the weight's: parameters
// determine the compute dtype.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              WeightLayout layout = WeightLayout::out_in);

// linear(gelu(x + bias_in), weight, bias). Saves only x for backward and computes the activation
// again.
Tensor bias_gelu_linear(const Tensor& x, const Tensor& bias_in, const Tensor& weight,
                        const Tensor& bias, WeightLayout layout, bool exact);
// linear(silu(gate) * up, weight). Saves only gate and up.
Tensor swiglu_linear(const Tensor& gate, const Tensor& up, const Tensor& weight,
                     WeightLayout layout);

// table[ids]: ids of any shape S (int32 or int64), result S + [dim].
Tensor embedding(const Tensor& ids, const Tensor& table);

// Normalizes over the last dimension. gamma and beta may be undefined.
Tensor layer_norm(const Tensor& x, const Tensor& gamma, const Tensor& beta, double eps = 1e-5);
Tensor rms_norm(const Tensor& x, const Tensor& gamma, double eps = 1e-6);
// Returns (x + residual, norm(x + residual)) in one pass over memory.
std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                         const Tensor& gamma, const Tensor& beta,
                                         double eps = 1e-5);
std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& gamma,
                                       double eps = 1e-6);

// Zeroes elements with probability p and scales the others by 1/(1-p). The mask depends on the
// seed, the batch position (engine/random.h) and the element; dimension 0 is the batch. p == 0
// returns x.
Tensor dropout(const Tensor& x, double p);

struct AttentionOptions {
  std::int64_t heads = 1;
  std::int64_t key_heads = 0;  // 0: same as heads; otherwise heads is a multiple of it
  bool causal = false;
  double scale = 0;      // 0: 1/sqrt(head size)
  double dropout = 0;    // of the probabilities
  Tensor key_mask = {};  // [batch, key_length] uint8, 0 = masked; or undefined
  // Needs `causal`: a query sees only the last `window` keys up to its own, at least 1. The cost
  // grows with the window instead of the length.
  std::optional<std::int64_t> window = {};
  // A scaled score s becomes soft_cap * tanh(s / soft_cap) before the softmax; above 0.
  std::optional<double> soft_cap = {};
  // Needs `causal` and as many keys as queries: a query sees only keys of its own document. Made
  // by document_starts(), on q's device; or undefined.
  Tensor document_starts = {};
  // [heads]: the score of one further key of each query head, whose value is 0 (gpt-oss). It takes
  // part in the softmax and is not masked; or undefined. Differentiable.
  Tensor sinks = {};
  // Added to the scores after scale and cap: [Tq, Tk], [heads or 1, Tq, Tk] or [batch or 1, heads
  // or 1, Tq, Tk] of any floating dtype, -inf hides a key; or undefined. It is used in fp32 (fp64
  // for fp64). Its gradient sums over the samples, and in each over the heads, that share an
  // element, in ascending order; computing it takes two further products per score. On a GPU a call
  // with a bias runs on ordinary cores. Of distances: distance_bias(), or sequence_attention(),
  // which needs no matrix.
  Tensor bias = {};
};
// A bias for AttentionOptions, [heads, queries, keys], from `by_distance` [2 * L - 1, heads]: key j
// uses row j - p + L - 1 for the query at p, L is at least `keys`, and the last query is at the
// last key. It is the matrix of SequenceAttentionOptions::relative_bias (T5). Differentiable.
Tensor distance_bias(const Tensor& by_distance, std::int64_t queries, std::int64_t keys);
// The first position of each position's document, as int32, for AttentionOptions: it is made once
// for a batch and used by all layers. ids [batch, T], int32 or int64 on the CPU, give the document
// of each position; documents are adjacent, and ids do not decrease along a row.
Tensor document_starts(const Tensor& ids, Device device = Device::cpu());
// q [batch, Tq, heads*D], k [batch, Tk, key_heads*D], v [batch, Tk, key_heads*Dv] -> [batch, Tq,
// heads*Dv]. D and Dv may differ (multi-head latent attention), with all options. On a GPU tensor
// cores take 16-bit types with both up to 128 and multiples of 8.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options);
// attention() with the logarithm of the sum of each row's exponentials, [batch, heads, Tq] in fp32
// (fp64 for fp64), -inf for a row without visible keys. Both are differentiable, so results for
// parts of the keys can be joined: part i has the weight exp(log_sum_exp_i - logsumexp of all). No
// sinks.
struct AttentionParts {
  Tensor out, log_sum_exp;
};
AttentionParts attention_parts(const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionOptions& options);
// qkv is [batch, T, (heads + 2*key_heads)*D]: q, then k, then v. No part is copied.
Tensor packed_attention(const Tensor& qkv, const AttentionOptions& options);

// Sequences that follow each other in the rows of a tensor [rows, ...] and cover all rows. These
// tensors are on that tensor's device.
struct Sequences {
  Tensor starts;   // int32 [count]: the first row
  Tensor lengths;  // int32 [count], at least 1
  // int32 [rows]: i * capacity + t for row t of sequence i. It numbers the random draws, so a
  // sequence's draws do not depend on the lengths of others.
  Tensor slots;
  std::int64_t longest = 0;   // no length is larger
  std::int64_t capacity = 0;  // at least `longest`, and the same in all batches

  [[nodiscard]] std::int64_t count() const { return lengths.elements(); }
};

struct SequenceAttentionOptions {
  std::int64_t heads = 1;
  double scale = 0;    // 0: 1/sqrt(head size)
  double dropout = 0;  // of the probabilities
  // Added to the scaled scores: [2 * L - 1, heads] in fp32 (fp64 for fp64). Key j uses row j - i +
  // L - 1 for query i; L is at least `longest`. May be undefined.
  Tensor relative_bias = {};
  // A query sees only the keys at most this far before and after its own, at least 1.
  std::optional<std::int64_t> window = {};
};
// Attention of each sequence to itself: q, k and v [rows, heads*D] -> [rows, heads*D]. The result
// of a sequence does not depend on other sequences or on the position of its rows.
Tensor sequence_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Sequences& sequences, const SequenceAttentionOptions& options);
// dropout() for rows [rows, dim] that belong to sequences.
Tensor sequence_dropout(const Tensor& x, double p, const Sequences& sequences);

// mean_sqrt_length: the sum divided by the square root of the length.
using kernels::PoolingMode;
// Pools x [rows, dim] to one row per sequence: [count, dim * modes] in fp32 (fp64 for fp64), with
// the modes' results side by side. The gradient of the maximum goes to the first row that has it.
Tensor pool_sequences(const Tensor& x, const Sequences& sequences,
                      const std::vector<PoolingMode>& modes);
// Divides the rows of x [..., dim] by their Euclidean norm, or by eps if that is larger.
Tensor normalize_rows(const Tensor& x, double eps = 1e-12);

// Rotates x [batch, T, heads*D] by positions first_position + t. cosine and sine are fp32
// [positions, D/2].
Tensor rotary(const Tensor& x, std::int64_t heads, const Tensor& cosine, const Tensor& sine,
              std::int64_t first_position = 0);

// Mean over the targets that are not `ignore`, as fp32 (fp64 for fp64). logits [..., vocabulary],
// targets [...]. If all targets are ignored, loss and gradient are 0 (PyTorch's loss is nan): such
// a rank adds nothing to the gradients of the others.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, std::int64_t ignore = -100);

struct LinearCrossEntropyOptions {
  std::int64_t ignore = -100;
  // Rows whose logits exist at once; 0: as many as fit the device's budget. On a CPU it is rounded
  // up to whole blocks and changes no bit; on a GPU it orders the sums of the weight's gradient.
  std::int64_t chunk_rows = 0;
};
// cross_entropy(linear(x, weight), targets) for a language model's head: x [..., in], weight
// [vocabulary, in], targets [...]. Neither the logits nor their gradient ever exist as a whole, and
// 16-bit types have their logits in fp32 (engine/ops/head/tiles.cpp, rows.cpp).
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const LinearCrossEntropyOptions& options = {});

}  // namespace tessera
