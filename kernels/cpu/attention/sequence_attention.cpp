// Attention within short sequences. One task owns one head of one sequence: its rows are copied to
// dense memory in the compute type, and all products are computed there. With a gradient of the
// relative bias, which sums over sequences, one task owns a head of all sequences.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/sequence_attention.cpp"
#include "kernels/cpu/simd/simd_targets.h"
//
#include "hwy/foreach_target.h"
//
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/matmul/matmul_scratch.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/cpu/simd/philox-inl.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/simd_math-inl.h"
#include "kernels/cpu/simd/small_product-inl.h"
#include "kernels/registry.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Queries whose scores exist at once.
constexpr std::int64_t kSequenceQueries = 64;
// Draws that are made at once.
constexpr std::int64_t kSequenceDraws = 256;

// A thread's scratch memory, of the compute type.
struct SequenceScratch {
  cpu::ScratchBuffer q, k, v, k_columns, v_columns, dout, out, scores, gradients, bias,
      probabilities, dq, dk, dv, bias_gradient;
};

// Code shared by forward and backward of one head of one sequence.
template <class T>
class SequenceHead {
 public:
  using C = Compute<T>;

  SequenceHead(const SequenceShape& shape, SequenceScratch& scratch, std::int64_t sequence,
               std::int64_t head)
      : shape_(shape), scratch_(scratch), sequence_(sequence), head_(head) {
    const auto lanes = static_cast<std::int64_t>(LaneCount<C>());
    start_ = shape.starts[sequence];
    length_ = shape.lengths[sequence];
    stride_ = shape.heads * shape.head_dim;
    columns_ = (length_ + lanes - 1) / lanes * lanes;
    width_ = (shape.head_dim + lanes - 1) / lanes * lanes;
    LoadBias();
  }

 protected:
  [[nodiscard]] std::int64_t Offset() const { return start_ * stride_ + head_ * shape_.head_dim; }
  [[nodiscard]] C* Statistics(const void* base) const {
    return const_cast<C*>(static_cast<const C*>(base)) + head_ * shape_.rows + start_;
  }

  // The head's rows in the compute type, with zeros up to whole vectors.
  const C* Rows(const void* base, cpu::ScratchBuffer& buffer) const {
    C* const rows = buffer.get<C>(length_ * width_);
    const T* const from = static_cast<const T*>(base) + Offset();
    for (std::int64_t r = 0; r < length_; ++r) {
      C* const to = rows + r * width_;
      ForEach<T>(shape_.head_dim, [&](std::int64_t i, auto access) HWY_ATTR {
        hn::StoreU(access.Load(from + r * stride_ + i), Tag<T>(), to + i);
      });
    }
    return rows;
  }
  // Dense rows, transposed: [head_dim, columns_] with zeros above the length.
  const C* Transposed(const C* rows, cpu::ScratchBuffer& buffer) const {
    C* const out = buffer.get<C>(shape_.head_dim * columns_);
    for (std::int64_t i = 0; i < shape_.head_dim; ++i) {
      C* const to = out + i * columns_;
      for (std::int64_t r = 0; r < length_; ++r) to[r] = rows[r * width_ + i];
      std::fill(to + length_, to + columns_, C{0});
    }
    return out;
  }
  void Store(const C* rows, void* base) const {
    T* const to = static_cast<T*>(base) + Offset();
    for (std::int64_t r = 0; r < length_; ++r) {
      ForEach<T>(shape_.head_dim, [&](std::int64_t i, auto access) HWY_ATTR {
        access.Store(access.Load(rows + r * width_ + i), to + r * stride_ + i);
      });
    }
  }

  // Keys that queries [first, first + rows) see, [first, last): those of one query, and those of a
  // block, from a whole vector on.
  struct Keys {
    std::int64_t first, last;
    [[nodiscard]] std::int64_t count() const { return last - first; }
  };
  [[nodiscard]] Keys KeysOf(std::int64_t first, std::int64_t rows) const {
    if (shape_.window == 0) return {0, length_};
    return {std::max<std::int64_t>(0, first - shape_.window),
            std::min(length_, first + rows + shape_.window)};
  }
  [[nodiscard]] Keys BlockKeys(std::int64_t first, std::int64_t rows) const {
    Keys keys = KeysOf(first, rows);
    keys.first -= keys.first % static_cast<std::int64_t>(LaneCount<C>());
    return keys;
  }
  // A block's columns in whole vectors.
  [[nodiscard]] static std::int64_t WholeVectors(std::int64_t count) {
    const auto lanes = static_cast<std::int64_t>(LaneCount<C>());
    return (count + lanes - 1) / lanes * lanes;
  }
  // The scores of a block. The last vector of a query's keys is stored whole, and with a window the
  // keys may begin anywhere: it reaches past the last row, or into the next row, where it changes
  // keys that the next query does not see.
  [[nodiscard]] std::int64_t BlockElements() const {
    return kSequenceQueries * columns_ + static_cast<std::int64_t>(LaneCount<C>());
  }
  // Zeroes a query's values of the block's keys that it does not see. `values` begins with the
  // block's first key.
  void HideOthers(const Keys& block, const Keys& seen, C* values) const {
    std::fill(values, values + (seen.first - block.first), C{0});
    std::fill(values + (seen.last - block.first), values + block.count(), C{0});
  }

  // score * scale (+ bias) of the keys from i on.
  template <class Access>
  HWY_INLINE Vec<C> Scaled(const C* scores, const C* bias, std::int64_t i, Access access) const {
    const auto scale = hn::Set(Tag<C>(), static_cast<C>(shape_.scale));
    const auto scaled = hn::Mul(access.Load(scores + i), scale);
    return bias == nullptr ? scaled : hn::Add(scaled, access.Load(bias + i));
  }
  // The bias of a query's keys from `first` on, or null.
  [[nodiscard]] const C* BiasOf(std::int64_t query, std::int64_t first) const {
    return bias_ == nullptr ? nullptr : bias_ + length_ - 1 - query + first;
  }

  // Zeroes the dropped values of a query's keys, and scales the kept ones.
  void Drop(std::int64_t query, const Keys& keys, C* values) const {
    const auto threshold = static_cast<std::uint32_t>(shape_.dropout * 0x1p32);
    const auto kept = static_cast<C>(1.0 / (1.0 - static_cast<double>(shape_.dropout)));
    const std::int64_t row =
        ((shape_.first_sequence + sequence_) * shape_.heads + head_) * shape_.capacity + query;
    PhiloxWords<kSequenceDraws> words;
    for (std::int64_t tile = 0; tile < keys.count(); tile += kSequenceDraws) {
      const std::int64_t count = std::min(kSequenceDraws, keys.count() - tile);
      const std::uint32_t* draws =
          words.Generate(shape_.key, row * shape_.capacity + keys.first + tile, count);
      for (std::int64_t j = 0; j < count; ++j) {
        values[tile + j] = draws[j] < threshold ? C{0} : values[tile + j] * kept;
      }
    }
  }

  const SequenceShape& shape_;
  SequenceScratch& scratch_;
  std::int64_t sequence_, head_;
  std::int64_t start_ = 0, length_ = 0, stride_ = 0;
  std::int64_t columns_ = 0, width_ = 0;  // length and head_dim in whole vectors
  const C* bias_ = nullptr;               // of distances 1 - length .. length - 1

 private:
  void LoadBias() {
    if (shape_.relative_bias == nullptr) return;
    C* const bias = scratch_.bias.get<C>(2 * length_ - 1);
    const C* const from = static_cast<const C*>(shape_.relative_bias) +
                          (shape_.reach - length_) * shape_.heads + head_;
    for (std::int64_t i = 0; i < 2 * length_ - 1; ++i) bias[i] = from[i * shape_.heads];
    bias_ = bias;
  }
};

template <class T>
class SequenceForward : public SequenceHead<T> {
 public:
  using C = Compute<T>;
  using Keys = typename SequenceHead<T>::Keys;
  using SequenceHead<T>::SequenceHead;

  void Run(const SequenceAttentionForward& a) {
    const std::int64_t dim = this->shape_.head_dim, columns = this->columns_;
    SequenceScratch& s = this->scratch_;
    const C* const q = this->Rows(a.q, s.q);
    const C* const k = this->Transposed(this->Rows(a.k, s.k), s.k_columns);
    const C* const v = this->Rows(a.v, s.v);
    C* const out = s.out.template get<C>(this->length_ * this->width_);
    C* const scores = s.scores.template get<C>(this->BlockElements());
    for (std::int64_t first = 0; first < this->length_; first += kSequenceQueries) {
      const std::int64_t rows = std::min(kSequenceQueries, this->length_ - first);
      const Keys block = this->BlockKeys(first, rows);
      Multiply<C>({q + first * this->width_, this->width_, 1, k + block.first, columns, scores,
                   columns, rows, this->WholeVectors(block.count()), dim});
      for (std::int64_t r = 0; r < rows; ++r) {
        const Keys seen = this->KeysOf(first + r, 1);
        C* const row = scores + r * columns;
        C* const values = row + seen.first - block.first;
        const C log_sum_exp = Softmax(first + r, seen, values);
        if (a.log_sum_exp != nullptr) this->Statistics(a.log_sum_exp)[first + r] = log_sum_exp;
        if (this->shape_.dropout > 0) this->Drop(first + r, seen, values);
        this->HideOthers(block, seen, row);
      }
      Multiply<C>({scores, columns, 1, v + block.first * this->width_, this->width_,
                   out + first * this->width_, this->width_, rows, this->width_, block.count()});
    }
    this->Store(out, a.out);
  }

 private:
  // Replaces scores of the keys by probabilities; returns their log-sum-exp.
  C Softmax(std::int64_t query, const Keys& keys, C* scores) const {
    const Tag<C> d;
    const C* const bias = this->BiasOf(query, keys.first);
    const auto lowest = hn::Set(d, -std::numeric_limits<C>::infinity());
    auto largest = lowest;
    ForEach<C>(keys.count(), [&](std::int64_t i, auto access) HWY_ATTR {
      const auto score = this->Scaled(scores, bias, i, access);
      hn::StoreU(score, d, scores + i);
      largest = hn::Max(largest, access.Keep(score, lowest));
    });
    const C maximum = LaneMax(largest);
    const auto shift = hn::Set(d, maximum);
    auto total = hn::Zero(d);
    ForEach<C>(keys.count(), [&](std::int64_t i, auto access) HWY_ATTR {
      const auto value = Exp(hn::Sub(access.Load(scores + i), shift));
      total = hn::Add(total, access.Keep(value, hn::Zero(d)));
      hn::StoreU(value, d, scores + i);
    });
    const C sum = LaneSum(total);
    const auto factor = hn::Set(d, C{1} / sum);
    ForEach<C>(keys.count(), [&](std::int64_t i, auto access) HWY_ATTR {
      hn::StoreU(hn::Mul(access.Load(scores + i), factor), d, scores + i);
    });
    return maximum + std::log(sum);
  }
};

template <class T>
class SequenceBackward : public SequenceHead<T> {
 public:
  using C = Compute<T>;
  using Keys = typename SequenceHead<T>::Keys;
  using SequenceHead<T>::SequenceHead;

  // Adds the gradients of distances 1 - length .. length - 1 to bias_gradient, unless that is null.
  void Run(const SequenceAttentionBackward& a, C* bias_gradient) {
    const std::int64_t dim = this->shape_.head_dim, width = this->width_, columns = this->columns_;
    const std::int64_t length = this->length_;
    SequenceScratch& s = this->scratch_;
    const C* const q = this->Rows(a.q, s.q);
    const C* const k = this->Rows(a.k, s.k);
    const C* const k_columns = this->Transposed(k, s.k_columns);
    const C* const v_columns = this->Transposed(this->Rows(a.v, s.v), s.v_columns);
    const C* const dout = this->Rows(a.dout, s.dout);
    const C* const out = this->Rows(a.out, s.out);
    C* const scores = s.scores.template get<C>(this->BlockElements());
    C* const gradients = s.gradients.template get<C>(this->BlockElements());
    C* const probabilities = s.probabilities.template get<C>(columns);
    C* const dq = s.dq.template get<C>(length * width);
    C* const dk = s.dk.template get<C>(length * width);
    C* const dv = s.dv.template get<C>(length * width);
    const bool windowed = this->shape_.window > 0;
    if (windowed) {  // a block adds to the keys that it sees only
      std::fill_n(dk, length * width, C{0});
      std::fill_n(dv, length * width, C{0});
    }
    for (std::int64_t first = 0; first < length; first += kSequenceQueries) {
      const std::int64_t rows = std::min(kSequenceQueries, length - first);
      const C* const q_rows = q + first * width;
      const C* const dout_rows = dout + first * width;
      const Keys block = this->BlockKeys(first, rows);
      const std::int64_t count = block.count(), whole = this->WholeVectors(count);
      Multiply<C>(
          {q_rows, width, 1, k_columns + block.first, columns, scores, columns, rows, whole, dim});
      Multiply<C>({dout_rows, width, 1, v_columns + block.first, columns, gradients, columns, rows,
                   whole, dim});
      for (std::int64_t r = 0; r < rows; ++r) {
        const Keys seen = this->KeysOf(first + r, 1);
        const std::int64_t offset = r * columns + seen.first - block.first;
        const C log_sum_exp = this->Statistics(a.log_sum_exp)[first + r];
        const C delta = Product(out + (first + r) * width, dout_rows + r * width);
        Gradients(first + r, seen, log_sum_exp, delta, scores + offset, gradients + offset,
                  probabilities);
        if (bias_gradient != nullptr) {
          AddTo(bias_gradient + length - 1 - (first + r) + seen.first, gradients + offset,
                seen.count());
        }
        this->HideOthers(block, seen, scores + r * columns);
        this->HideOthers(block, seen, gradients + r * columns);
      }
      const std::int64_t at = block.first * width;
      const bool more = first > 0 || windowed;
      Multiply<C>({scores, 1, columns, dout_rows, width, dv + at, width, count, width, rows, more});
      for (std::int64_t r = 0; r < rows; ++r) Scale(gradients + r * columns, whole);
      Multiply<C>({gradients, 1, columns, q_rows, width, dk + at, width, count, width, rows, more});
      Multiply<C>(
          {gradients, columns, 1, k + at, width, dq + first * width, width, rows, width, count});
    }
    this->Store(dq, a.dq);
    this->Store(dk, a.dk);
    this->Store(dv, a.dv);
  }

 private:
  C Product(const C* x, const C* y) const {
    return LaneSum(SumTerms<C>(this->width_, [&](std::int64_t i, auto access) HWY_ATTR {
      return hn::Mul(access.Load(x + i), access.Load(y + i));
    }));
  }
  void AddTo(C* sums, const C* values, std::int64_t count) const {
    ForEach<C>(count, [&](std::int64_t i, auto access) HWY_ATTR {
      access.Store(hn::Add(access.Load(sums + i), access.Load(values + i)), sums + i);
    });
  }
  void Scale(C* values, std::int64_t n) const {
    const auto scale = hn::Set(Tag<C>(), static_cast<C>(this->shape_.scale));
    ForEach<C>(n, [&](std::int64_t i, auto access) HWY_ATTR {
      access.Store(hn::Mul(access.Load(values + i), scale), values + i);
    });
  }
  // Turns the keys' scores into probabilities after dropout, and gradients of probabilities into
  // those of the scaled scores.
  void Gradients(std::int64_t query, const Keys& keys, C log_sum_exp, C delta, C* scores,
                 C* gradients, C* probabilities) const {
    const Tag<C> d;
    const C* const bias = this->BiasOf(query, keys.first);
    const auto shift = hn::Set(d, log_sum_exp);
    const auto mean = hn::Set(d, delta);
    const bool dropout = this->shape_.dropout > 0;
    ForEach<C>(keys.count(), [&](std::int64_t i, auto access) HWY_ATTR {
      const auto value = Exp(hn::Sub(this->Scaled(scores, bias, i, access), shift));
      hn::StoreU(value, d, scores + i);
      hn::StoreU(value, d, probabilities + i);
    });
    if (dropout) {
      this->Drop(query, keys, scores);
      this->Drop(query, keys, gradients);
    }
    ForEach<C>(keys.count(), [&](std::int64_t i, auto access) HWY_ATTR {
      const auto gradient = hn::Sub(access.Load(gradients + i), mean);
      hn::StoreU(hn::Mul(access.Load(probabilities + i), gradient), d, gradients + i);
    });
  }
};

template <class T>
void SequenceForwardTasks(const SequenceAttentionForward& a) {
  parallel_for(0, a.shape.sequences * a.shape.heads, 1, [&](std::int64_t first, std::int64_t last) {
    static thread_local SequenceScratch scratch;
    for (std::int64_t i = first; i < last; ++i) {
      SequenceForward<T>(a.shape, scratch, i / a.shape.heads, i % a.shape.heads).Run(a);
    }
  });
}

template <class T>
void SequenceBackwardTasks(const SequenceAttentionBackward& a) {
  const SequenceShape& s = a.shape;
  if (a.relative_bias_gradient == nullptr) {
    parallel_for(0, s.sequences * s.heads, 1, [&](std::int64_t first, std::int64_t last) {
      static thread_local SequenceScratch scratch;
      for (std::int64_t i = first; i < last; ++i) {
        SequenceBackward<T>(s, scratch, i / s.heads, i % s.heads).Run(a, nullptr);
      }
    });
    return;
  }
  using C = Compute<T>;
  const std::int64_t distances = 2 * s.reach - 1;
  parallel_for(0, s.heads, 1, [&](std::int64_t first, std::int64_t last) {
    static thread_local SequenceScratch scratch;
    C* const sums = scratch.bias_gradient.get<C>(distances);
    for (std::int64_t head = first; head < last; ++head) {
      std::fill_n(sums, distances, C{0});
      for (std::int64_t i = 0; i < s.sequences; ++i) {
        SequenceBackward<T>(s, scratch, i, head).Run(a, sums + s.reach - s.lengths[i]);
      }
      C* const to = static_cast<C*>(a.relative_bias_gradient) + head;
      for (std::int64_t i = 0; i < distances; ++i) to[i * s.heads] = sums[i];
    }
  });
}

void SequenceForwardOf(const SequenceAttentionForward& a) {
  cpu::for_floating(a.shape.dtype, "sequence_attention_forward",
                    [&](auto tag) { SequenceForwardTasks<typename decltype(tag)::type>(a); });
}

void SequenceBackwardOf(const SequenceAttentionBackward& a) {
  cpu::for_floating(a.shape.dtype, "sequence_attention_backward",
                    [&](auto tag) { SequenceBackwardTasks<typename decltype(tag)::type>(a); });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {
HWY_EXPORT(SequenceForwardOf);
HWY_EXPORT(SequenceBackwardOf);

void cpu::sequence_attention_forward(const SequenceAttentionForward& a, Queue) {
  HWY_DYNAMIC_DISPATCH(SequenceForwardOf)(a);
}
void cpu::sequence_attention_backward(const SequenceAttentionBackward& a, Queue) {
  HWY_DYNAMIC_DISPATCH(SequenceBackwardOf)(a);
}

}  // namespace tessera::kernels
#endif
