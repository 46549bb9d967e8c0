// Ops on shapes, with broadcasting, over dimensions and at ids: what programs for other frameworks
// use beside engine/ops.h. docs/cpp-api.md has a table of libtorch's names.
//
// As there, each op is differentiable unless its comment says otherwise, throws a std::logic_error
// that names the op, the shapes and the rule, and computes in fp32 (fp64 for fp64) with one
// rounding to the dtype of its inputs. Tensors are contiguous: a result that is not a part of its
// input's memory is a copy. A dimension below 0 counts from the end. Results do not depend on the
// number of threads.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "engine/ops.h"
#include "engine/tensor.h"

namespace tessera {

// ---- Views and shapes: any dtype. The bits are copied.

// The dimensions in another order: dimension i of the result is dimension order[i] of x. Each
// occurs once.
Tensor permute(const Tensor& x, std::span<const int> order);
Tensor permute(const Tensor& x, std::initializer_list<int> order);
// x with two dimensions exchanged.
Tensor transpose(const Tensor& x, int first = -2, int second = -1);
// Elements begin, begin + step, ... below end of one dimension. Positions below 0 count from the
// end; those beyond the dimension's ends are moved to them, as Python's. step > 0. Shares x's
// memory if the elements are adjacent.
inline constexpr std::int64_t to_the_end = std::numeric_limits<std::int64_t>::max();
Tensor slice(const Tensor& x, int dimension, std::int64_t begin, std::int64_t end = to_the_end,
             std::int64_t step = 1);
// Elements [begin, begin + length) of one dimension, which must exist.
Tensor narrow(const Tensor& x, int dimension, std::int64_t begin, std::int64_t length);
// Element `index` of one dimension, without that dimension.
Tensor select(const Tensor& x, int dimension, std::int64_t index);
// Parts of one dimension with these sizes, which add up to it.
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes,
                          int dimension = 0);
// Parts of `size` elements, the last may have fewer.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, int dimension = 0);
// At most `count` parts of equal size, the last may be smaller; fewer if the dimension is short, as
// torch's.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, int dimension = 0);
// Joins parts along one dimension. Their other sizes, dtypes and devices are equal; there is at
// least one.
Tensor concatenate(std::span<const Tensor> parts, int dimension = 0);
Tensor concatenate(std::initializer_list<Tensor> parts, int dimension);
// Joins tensors of one shape along a new dimension.
Tensor stack(std::span<const Tensor> parts, int dimension = 0);
Tensor stack(std::initializer_list<Tensor> parts, int dimension = 0);
// Repeats dimensions of size 1, and new ones in front, to a shape, as NumPy's broadcasting. The
// result is a copy.
Tensor expand(const Tensor& x, const Shape& shape);
// Without one dimension of size 1 / with a new one at this place.
Tensor squeeze(const Tensor& x, int dimension);
Tensor unsqueeze(const Tensor& x, int dimension);
// Surrounds the last dimensions, one Padding for each of them in their order, with `value`.
// Paddings below 0 remove elements; no size may become negative.
struct Padding {
  std::int64_t before = 0, after = 0;
};
Tensor pad(const Tensor& x, std::span<const Padding> paddings, double value = 0);
Tensor pad(const Tensor& x, std::initializer_list<Padding> paddings, double value = 0);

// ---- Element by element, with NumPy's broadcasting: shapes are aligned at their ends, and a size
// of 1 or a missing dimension repeats. add, subtract, multiply and divide (engine/ops.h) broadcast
// so too. Floating, of one dtype.

// NaN if either is. Where both are equal, each gets half of the gradient.
Tensor minimum(const Tensor& x, const Tensor& y);
Tensor maximum(const Tensor& x, const Tensor& y);
// x^y. The gradient of y is 0 where x is 0 and y is not negative, and NaN where x is negative.
Tensor pow(const Tensor& x, const Tensor& y);
Tensor pow(const Tensor& x, double exponent);
Tensor abs(const Tensor& x);  // the gradient at 0 is 0
Tensor reciprocal(const Tensor& x);
Tensor rsqrt(const Tensor& x);  // 1 / sqrt(x)
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
// log(1 + e^(beta x)) / beta, and x itself where beta x > threshold.
Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20);
// min(max(x, low), high). The gradient is 0 outside.
Tensor clamp(const Tensor& x, double low, double high = std::numeric_limits<double>::infinity());
// -1, 0 or 1, or NaN. Not differentiable.
Tensor sign(const Tensor& x);

// Comparisons give a boolean tensor and are not differentiable. Any dtype, the same on both sides;
// a number is converted to x's dtype if that is a floating one, and an integer compares with the
// number as it is. Comparisons with NaN are false, except not_equal.
Tensor equal(const Tensor& x, const Tensor& y);
Tensor not_equal(const Tensor& x, const Tensor& y);
Tensor less(const Tensor& x, const Tensor& y);
Tensor less_equal(const Tensor& x, const Tensor& y);
Tensor greater(const Tensor& x, const Tensor& y);
Tensor greater_equal(const Tensor& x, const Tensor& y);
Tensor equal(const Tensor& x, double y);
Tensor not_equal(const Tensor& x, double y);
Tensor less(const Tensor& x, double y);
Tensor less_equal(const Tensor& x, double y);
Tensor greater(const Tensor& x, double y);
Tensor greater_equal(const Tensor& x, double y);
// Logic of boolean or uint8 tensors (not 0 is true). Not differentiable.
Tensor logical_and(const Tensor& x, const Tensor& y);
Tensor logical_or(const Tensor& x, const Tensor& y);
Tensor logical_not(const Tensor& x);
// x where the condition (boolean or uint8) is true, and y elsewhere; all three broadcast. x and y
// have one dtype, any.
Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y);
// `value` where the mask (boolean or uint8, broadcast to x) is true, and x elsewhere.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

// ---- Over dimensions.

// The dimensions of a reduction: one, some, or all with {}.
class Dimensions {
 public:
  Dimensions(int dimension) : list_{dimension} {}
  Dimensions(std::initializer_list<int> list) : list_(list) {}
  Dimensions(std::vector<int> list) : list_(std::move(list)) {}
  [[nodiscard]] const std::vector<int>& list() const { return list_; }

 private:
  std::vector<int> list_;
};

// `keep`: reduced dimensions stay, with size 1. Floating dtypes. Sums have a fixed order. The mean,
// the maximum and the minimum of nothing are refused; a sum of nothing is 0.
Tensor sum(const Tensor& x, const Dimensions& dimensions, bool keep = false);
Tensor mean(const Tensor& x, const Dimensions& dimensions, bool keep = false);
// NaN if one is. Elements that are equal to the result share the gradient.
Tensor max(const Tensor& x, const Dimensions& dimensions = {}, bool keep = false);
Tensor min(const Tensor& x, const Dimensions& dimensions = {}, bool keep = false);
// The first place of the largest (smallest) element of one dimension, as int64; NaN is the largest
// and the smallest. Not differentiable.
Tensor argmax(const Tensor& x, int dimension = -1, bool keep = false);
Tensor argmin(const Tensor& x, int dimension = -1, bool keep = false);
// The squares of the deviations from the mean, added and divided by n - correction, which must be
// positive.
Tensor variance(const Tensor& x, const Dimensions& dimensions = {}, double correction = 1,
                bool keep = false);
// log(sum(e^x)) without overflow.
Tensor logsumexp(const Tensor& x, const Dimensions& dimensions, bool keep = false);
// sum(|x|^p)^(1/p), p > 0; infinity: the largest |x|. The gradient of p = 2 at 0 is 0.
Tensor norm(const Tensor& x, double p = 2, const Dimensions& dimensions = {}, bool keep = false);
Tensor softmax(const Tensor& x, int dimension);
Tensor log_softmax(const Tensor& x, int dimension = -1);
// x [samples, channels, ..]: each sample's channels in `groups` are normalised together, over their
// places too; then each channel is multiplied by gamma and beta is added, [channels] or undefined.
// Computed in fp32 throughout (fp64 for fp64); the result has gamma's dtype, or x's without it.
Tensor group_norm(const Tensor& x, std::int64_t groups, const Tensor& gamma = {},
                  const Tensor& beta = {}, double eps = 1e-5);
// Element j is the sum of elements 0 to j, in fp64 before it is rounded.
Tensor cumulative_sum(const Tensor& x, int dimension);

// ---- At ids: int32 or int64. An id outside its dimension is an Error(data) with the position and
// the id.

// Slices of x along one dimension: result[.., j, ..] = x[.., ids[j], ..]. ids: one dimension. Any
// dtype.
Tensor index_select(const Tensor& x, int dimension, const Tensor& ids);
// result[.., j, ..] = x[.., ids[.., j, ..], ..]. ids has x's sizes except in `dimension`. Any
// dtype.
Tensor gather(const Tensor& x, int dimension, const Tensor& ids);
// x with values added: result[.., ids[.., j, ..], ..] += values[.., j, ..], in ascending j, rounded
// once. ids and values have one shape, that of x except in `dimension`. Floating.
Tensor scatter_add(const Tensor& x, int dimension, const Tensor& ids, const Tensor& values);
// [...] ids to [..., classes]: 1 at the id and 0 elsewhere, in a floating dtype. Not
// differentiable.
Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype = float32);

// The order along one dimension: stable, NaN is the largest. Floating. `places` is int64 and not
// differentiable.
struct Sorted {
  Tensor values, places;
};
Sorted sort(const Tensor& x, int dimension = -1, bool descending = false);
// The first `count` of a sort: the largest ones, or the smallest.
Sorted topk(const Tensor& x, std::int64_t count, int dimension = -1, bool largest = true);
Tensor argsort(const Tensor& x, int dimension = -1, bool descending = false);

// ---- Products.

// matmul(a, b) (engine/ops.h) of matrices as stored, or transposed without a copy.
struct Transposes {
  bool a = false, b = false;
};
Tensor matmul(const Tensor& a, const Tensor& b, const Transposes& transposes);
// Sums of products in NumPy's notation, "bhqd,bhkd->bhqk": one or two operands, a letter for each
// dimension, letters that the result does not have are summed; without "->" the result has the
// letters that occur once, in alphabetic order. No letter occurs twice in an operand, and there is
// no "...".
Tensor einsum(const char* equation, std::initializer_list<Tensor> operands);

// ---- Losses: floating, one dtype; fp32 for 16-bit types (fp64 for fp64), computed there
// throughout.

enum class Reduction : std::uint8_t { mean, sum, none };
// x and target have one shape.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);
// Half of the square up to delta, a line beyond; torch's huber_loss.
Tensor huber_loss(const Tensor& x, const Tensor& target, double delta = 1,
                  Reduction reduction = Reduction::mean);
// -(target log sigmoid(x) + (1 - target) log(1 - sigmoid(x))), target from 0 to 1.
Tensor bce_with_logits(const Tensor& x, const Tensor& target,
                       Reduction reduction = Reduction::mean);
// target (log target - x): x holds logarithms, target probabilities; 0 where target is 0. No
// gradient for the target. mean divides by the number of elements, as torch's "mean"; divide a sum
// by the batch for "batchmean".
Tensor kl_div(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);
struct CrossEntropyOptions {
  std::int64_t ignore = -100;
  double label_smoothing = 0;  // this part of the target is spread over the vocabulary
  double z_loss = 0;           // times the mean of the squares of logsumexp(logits)
};
// cross_entropy (engine/ops.h) with more terms: [..., vocabulary] and targets [...]; the mean over
// targets that count.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options);

}  // namespace tessera
