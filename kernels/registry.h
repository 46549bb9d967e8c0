// The table of kernels of a device. An op is one line here, one file in kernels/cpu and, on GPUs,
// one file of the same name in kernels/cuda.
#pragma once

#include "kernels/activation.h"
#include "kernels/adafactor.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gemv.h"
#include "kernels/indexing.h"
#include "kernels/matmul.h"
#include "kernels/normalization.h"
#include "kernels/optimizer.h"
#include "kernels/pointwise.h"
#include "kernels/pooling.h"
#include "kernels/random.h"
#include "kernels/reduce.h"
#include "kernels/reduction.h"
#include "kernels/rotary.h"
#include "kernels/sequence_attention.h"
#include "kernels/strided.h"
#include "kernels/wire.h"

namespace tessera::kernels {

// The in-order queue of a kernel: a kernels::cuda::Context; on the CPU the calling thread, and
// null.
struct Queue {
  void* native = nullptr;
};

#define TESSERA_KERNELS(X)                                  \
  X(matmul, Matmul)                                         \
  X(gemv, Gemv)                                             \
  X(fill, Fill)                                             \
  X(cast, Cast)                                             \
  X(dequantize, Dequantize)                                 \
  X(unary, Unary)                                           \
  X(unary_backward, UnaryBackward)                          \
  X(binary, Binary)                                         \
  X(affine, Affine)                                         \
  X(sum_rows, SumRows)                                      \
  X(sum_all, SumAll)                                        \
  X(sum_of_squares, SumOfSquares)                           \
  X(reduce_ranks, ReduceRanks)                              \
  X(wire, Wire)                                             \
  X(norm_forward, NormForward)                              \
  X(norm_backward, NormBackward)                            \
  X(bias_gelu, BiasGelu)                                    \
  X(bias_gelu_backward, BiasGeluBackward)                   \
  X(swiglu, SwiGlu)                                         \
  X(swiglu_backward, SwiGluBackward)                        \
  X(embedding_forward, EmbeddingForward)                    \
  X(embedding_backward, EmbeddingBackward)                  \
  X(rotary, Rotary)                                         \
  X(random_fill, RandomFill)                                \
  X(dropout, Dropout)                                       \
  X(attention_forward, AttentionForward)                    \
  X(attention_backward, AttentionBackward)                  \
  X(sequence_attention_forward, SequenceAttentionForward)   \
  X(sequence_attention_backward, SequenceAttentionBackward) \
  X(sequence_dropout, SequenceDropout)                      \
  X(pool_forward, PoolForward)                              \
  X(pool_backward, PoolBackward)                            \
  X(normalize_rows, NormalizeRows)                          \
  X(normalize_rows_backward, NormalizeRowsBackward)         \
  X(cross_entropy_forward, CrossEntropyForward)             \
  X(mean_loss, MeanLoss)                                    \
  X(cross_entropy_backward, CrossEntropyBackward)           \
  X(softmax_forward, SoftmaxForward)                        \
  X(softmax_backward, SoftmaxBackward)                      \
  X(strided_copy, StridedCopy)                              \
  X(pointwise, Pointwise)                                   \
  X(reduce, Reduce)                                         \
  X(cumulative_sum, CumulativeSum)                          \
  X(gather, Gather)                                         \
  X(scatter_add, ScatterAdd)                                \
  X(sort_order, SortOrder)                                  \
  X(unfold, Unfold)                                         \
  X(fold, Fold)                                             \
  X(adamw_step, AdamWStep)                                  \
  X(lion_step, LionStep)                                    \
  X(sgd_step, SgdStep)                                      \
  X(adamw_8bit_step, AdamW8BitStep)                         \
  X(adamw_rounded_step, AdamWRoundedStep)                   \
  X(schedule_free_step, ScheduleFreeStep)                   \
  X(schedule_free_point, ScheduleFreePoint)                 \
  X(exact_limbs, ExactLimbs)                                \
  X(exact_totals, ExactTotals)                              \
  X(factor_sums, FactorSums)                                \
  X(factor_update, FactorUpdate)                            \
  X(adafactor_step, AdafactorStep)

struct KernelTable {
#define TESSERA_KERNEL_POINTER(name, Arguments) void (*name)(const Arguments&, Queue);
  TESSERA_KERNELS(TESSERA_KERNEL_POINTER)
#undef TESSERA_KERNEL_POINTER
};

namespace cpu {
#define TESSERA_KERNEL_DECLARATION(name, Arguments) void name(const Arguments&, Queue = {});
TESSERA_KERNELS(TESSERA_KERNEL_DECLARATION)
#undef TESSERA_KERNEL_DECLARATION
}  // namespace cpu

const KernelTable& cpu_kernels();

}  // namespace tessera::kernels
