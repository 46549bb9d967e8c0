// A language model's head and its loss, forward and backward: `tiles` is linear_cross_entropy(),
// `whole` is cross_entropy(linear()), which keeps the logits.
#include <algorithm>

#include "bench/kernels/rows.h"
#include "engine/device/memory.h"
#include "engine/ops.h"

namespace tessera::bench {
namespace {

constexpr std::int64_t head_tokens = 512, head_vocabulary = 16384, head_width = 384;

struct HeadInputs {
  Tensor x, weight, targets;

  explicit HeadInputs(DType dtype)
      : x(Tensor::full({head_tokens, head_width}, 0.01, dtype).set_requires_grad(true)),
        weight(Tensor::full({head_vocabulary, head_width}, 0.02, dtype).set_requires_grad(true)) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(head_tokens));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 31 % head_vocabulary);
    }
    targets = Tensor::from(ids, {head_tokens});
  }
};

Work head_work(Memory& memory, DType dtype, bool tiles) {
  auto& in = memory.keep(HeadInputs(dtype));
  auto& peak = memory.keep(std::size_t{0});
  const auto run = [&in, &peak, tiles] {
    in.x.zero_grad();
    in.weight.zero_grad();
    const auto& pool = MemoryPool::current();
    pool->trim();
    const std::size_t before = pool->stats().in_use;
    pool->reset_peak();
    const Tensor loss = tiles ? linear_cross_entropy(in.x, in.weight, in.targets)
                              : cross_entropy(linear(in.x, in.weight), in.targets);
    loss.backward();
    peak = pool->stats().peak_in_use - before;
  };
  const auto size = static_cast<double>(size_of(dtype));
  return {.run = run,
          .bytes = 2 * size * (head_vocabulary + head_tokens) * head_width,
          .flops = 3 * 2.0 * head_tokens * head_vocabulary * head_width,
          .products = dtype,
          .onednn = bare_linear(head_tokens, head_width, head_vocabulary, dtype, true, memory),
          .peak_bytes = [&peak] { return static_cast<double>(peak); }};
}

}  // namespace

void add_head_rows(const WholeOptions& options) {
  Rows rows("head", options.rounds);
  for (const DType dtype : {float32, bfloat16}) {
    for (const bool tiles : {true, false}) {
      rows.add_long((tiles ? "tiles/" : "whole/") + std::string(name_of(dtype)),
                    [=](Memory& memory) { return head_work(memory, dtype, tiles); });
    }
  }
}

}  // namespace tessera::bench
