// The grouped products of a mixture of experts, next to one dense product of the same work: as many
// rows, and one weight for all of them.
#include <cmath>
#include <string>

#include "bench/kernels/rows.h"
#include "engine/autograd.h"
#include "engine/ops/products/grouped.h"

namespace tessera::bench {
namespace {

constexpr std::int64_t sources = 2048, experts_of_source = 2, grouped_experts = 8;
constexpr std::int64_t grouped_rows = sources * experts_of_source;
constexpr std::int64_t grouped_in = 384, grouped_out = 768;

struct GroupedInputs {
  Tensor x;
  std::vector<Tensor> weights;
  RowGroups groups;

  // The first expert has five times the rows of the last one.
  explicit GroupedInputs(DType dtype)
      : x(Tensor::full({grouped_rows, grouped_in}, 0.01, dtype).set_requires_grad(true)) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(grouped_rows));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const double place =
          static_cast<double>(i * 1237 % ids.size()) / static_cast<double>(ids.size());
      ids[i] = static_cast<std::int32_t>(grouped_experts * std::pow(place, 1.6));
    }
    groups = group_rows(Tensor::from(ids, {sources, experts_of_source}), grouped_experts);
    for (std::int64_t e = 0; e < grouped_experts; ++e) {
      weights.push_back(
          Tensor::full({grouped_out, grouped_in}, 0.02, dtype).set_requires_grad(true));
    }
  }
};

Work grouped_work(Memory& memory, DType dtype, bool trained) {
  auto& in = memory.keep(GroupedInputs(dtype));
  auto& seed = memory.keep(Tensor::full({grouped_rows, grouped_out}, 0.01, dtype));
  const auto run = [&in, &seed, trained] {
    if (!trained) {
      const NoGradGuard no_grad;
      (void)grouped_linear(in.x, in.weights, in.groups);
      return;
    }
    in.x.zero_grad();
    for (Tensor& weight : in.weights) weight.zero_grad();
    grouped_linear(in.x, in.weights, in.groups).backward(seed);
  };
  const double numbers =
      grouped_rows * (grouped_in + grouped_out) + grouped_experts * grouped_in * grouped_out;
  return {.run = run,
          .bytes = numbers * static_cast<double>(size_of(dtype)) * (trained ? 2 : 1),
          .flops = 2.0 * grouped_rows * grouped_in * grouped_out * (trained ? 3 : 1),
          .products = dtype,
          .onednn = bare_linear(grouped_rows, grouped_in, grouped_out, dtype, trained, memory)};
}

}  // namespace

void add_grouped_rows(const WholeOptions& options) {
  Rows rows("grouped_linear", options.rounds);
  for (const DType dtype : {float32, bfloat16}) {
    for (const bool trained : {false, true}) {
      rows.add((trained ? "train/" : "forward/") + std::string(name_of(dtype)),
               [=](Memory& memory) { return grouped_work(memory, dtype, trained); });
    }
  }
}

}  // namespace tessera::bench
