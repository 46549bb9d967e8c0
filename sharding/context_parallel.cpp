// Attention over sequences whose positions lie on several ranks.
#include "sharding/context_parallel.h"

#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/tensor_ops.h"
#include "sharding/context/tensor_collectives.h"
#include "sharding/profiler/step_recorder.h"

namespace tessera {
namespace {

// [batch, t, ranks * width] -> [ranks, batch, t, width]: a piece of the width for each rank.
Tensor pieces_of_width(const Tensor& x, std::int64_t ranks) {
  const std::int64_t width = x.size(2) / ranks;
  return permute(reshape(x, {x.size(0), x.size(1), ranks, width}), {2, 0, 1, 3});
}

// Pieces [ranks, batch, t, width] of the positions -> [batch, ranks * t, width].
Tensor joined_positions(const Tensor& pieces) {
  const Tensor x = permute(pieces, {1, 0, 2, 3});
  return reshape(x, {x.size(0), x.size(1) * x.size(2), x.size(3)});
}

// x [batch, t, heads * D] with each head `times` times in a row.
Tensor repeated_heads(Tensor x, std::int64_t heads, std::int64_t times) {
  if (times == 1) return x;
  const std::int64_t batch = x.size(0), length = x.size(1), size = x.size(2) / heads;
  const Tensor one = reshape(x, {batch, length, heads, 1, size});
  return reshape(expand(one, {batch, length, heads, times, size}),
                 {batch, length, heads * times * size});
}

// How often each key head is repeated so that the ranks divide them; `ranks` divides `heads`.
std::int64_t repeats_of(std::int64_t heads, std::int64_t key_heads, std::int64_t ranks) {
  const std::int64_t group = heads / key_heads;
  std::int64_t times = 1;
  while (group % times != 0 || (key_heads * times) % ranks != 0) ++times;
  return times;
}

void check_options(const AttentionOptions& options) {
  TESSERA_REQUIRE(!options.key_mask.defined(),
                  "ContextParallel::attention with a key_mask: it takes rows of equal length; "
                  "ignore the targets of padding at the end of a row");
  TESSERA_REQUIRE(!options.bias.defined(),
                  "ContextParallel::attention with a bias: no rank has the scores of whole "
                  "sequences and all heads; leave it out");
}

// The options that all ranks of a block must pass alike, as text.
std::string purpose_of(const AttentionOptions& options) {
  std::string text = fmt::format("attention of {} heads, {} key heads", options.heads,
                                 options.key_heads == 0 ? options.heads : options.key_heads);
  if (options.causal) text += ", causal";
  if (options.window) text += fmt::format(", window {}", *options.window);
  if (options.soft_cap) text += fmt::format(", soft cap {}", *options.soft_cap);
  if (options.scale != 0) text += fmt::format(", scale {}", options.scale);
  if (options.dropout != 0) text += fmt::format(", dropout {}", options.dropout);
  if (options.document_starts.defined()) text += ", documents";
  if (options.sinks.defined()) text += ", sinks";
  return text;
}

SpanKind kind_of(ExchangeCall::Kind kind) {
  switch (kind) {
    case ExchangeCall::Kind::all_to_all:
      return SpanKind::all_to_all;
    case ExchangeCall::Kind::all_gather:
      return SpanKind::all_gather;
    case ExchangeCall::Kind::reduce_scatter:
      return SpanKind::reduce_scatter;
    case ExchangeCall::Kind::all_reduce:
      return SpanKind::all_reduce;
  }
  misuse("a call of no kind");
}

}  // namespace

struct ContextParallel::Impl {
  explicit Impl(std::shared_ptr<comm::Communicator> communicator)
      : collectives(std::make_shared<TensorCollectives>(std::move(communicator))) {}

  [[nodiscard]] comm::Communicator& ranks() const { return collectives->communicator(); }
  [[nodiscard]] std::int64_t size() const { return ranks().size(); }

  // These functions free a tensor as soon as its successor exists, because activations decide how
  // long a sequence can be.
  //
  // [batch, t, width] -> [batch, T, width / ranks].
  [[nodiscard]] Tensor to_heads(Tensor x, const std::string& purpose) const {
    x = pieces_of_width(x, size());
    x = collectives->all_to_all(x, purpose);
    return joined_positions(x);
  }
  // The other way.
  [[nodiscard]] Tensor to_positions(Tensor x, const std::string& purpose) const {
    const std::int64_t batch = x.size(0), length = x.size(1) / size(), width = x.size(2);
    x = permute(reshape(x, {batch, size(), length, width}), {1, 0, 2, 3});
    x = collectives->all_to_all(x, purpose);
    x = permute(x, {1, 2, 0, 3});
    return reshape(x, {batch, length, size() * width});
  }
  // The positions of all ranks: [batch, t, width] -> [batch, T, width].
  [[nodiscard]] Tensor gathered(const Tensor& x) const {
    const Tensor all = collectives->gather(x);
    return joined_positions(reshape(all, {size(), x.size(0), x.size(1), x.size(2)}));
  }

  [[nodiscard]] AttentionOptions options_of_part(const AttentionOptions& options) const {
    AttentionOptions own = options;
    own.heads = options.heads / size();
    if (options.sinks.defined()) {
      own.sinks = narrow(options.sinks, 0, ranks().rank() * own.heads, own.heads);
    }
    return own;
  }

  // packed_attention() of pieces [ranks, batch, t, width], each of which is packed.
  [[nodiscard]] Tensor of_packed_pieces(Tensor pieces, const AttentionOptions& options,
                                        std::int64_t key_heads) const {
    AttentionOptions own = options_of_part(options);
    own.key_heads = key_heads / size();
    const std::string purpose = purpose_of(options);
    pieces = collectives->all_to_all(pieces, purpose);
    pieces = joined_positions(pieces);
    return to_positions(tessera::packed_attention(pieces, own), purpose);
  }

  // Each rank computes its own queries with the keys that they may see.
  [[nodiscard]] Tensor of_own_positions(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const AttentionOptions& options) const {
    TESSERA_REQUIRE(!options.document_starts.defined(),
                    "ContextParallel::attention with document_starts: {} heads do not divide over "
                    "{} ranks; use a number of ranks that divides them",
                    options.heads, size());
    const std::int64_t length = q.size(1), all_keys = k.size(1) * size();
    TESSERA_REQUIRE(
        !options.causal || all_keys >= length * size(),
        "ContextParallel::attention of {} causal queries and {} keys over {} ranks that "
        "do not divide the {} heads; at least as many keys as queries are required",
        length * size(), all_keys, size(), options.heads);
    // Causal queries end at the last key. A plan is that of the last rank, which has most keys.
    const std::int64_t behind =
        q.device().is_planned() ? 0 : length * (size() - 1 - ranks().rank());
    const std::int64_t keys = options.causal ? all_keys - behind : all_keys;
    return tessera::attention(q, narrow(gathered(k), 1, 0, keys), narrow(gathered(v), 1, 0, keys),
                              options);
  }

  std::shared_ptr<TensorCollectives> collectives;
};

ContextParallel::ContextParallel(const Context& context, int ranks) {
  TESSERA_CHECK(ranks >= 1 && context.world_size() % ranks == 0, ErrorCode::configuration,
                "context parallelism over {} ranks in a world of {}; it must divide the world",
                ranks, context.world_size());
  impl_ = std::make_unique<Impl>(context.communicator().split_blocks(ranks, "context parallelism"));
  // Ranks that pass other numbers have blocks of their own.
  TESSERA_CHECK(impl_->size() == ranks, ErrorCode::rank_failed,
                "context parallelism over {} ranks, and {} of them asked for it; every rank of the "
                "context passes the same number",
                ranks, impl_->size());
  block_ = context.rank() / ranks;
  blocks_ = context.world_size() / ranks;
}

ContextParallel::~ContextParallel() = default;

int ContextParallel::ranks() const {
  return impl_->ranks().size();
}

int ContextParallel::part() const {
  return impl_->ranks().rank();
}

Tensor ContextParallel::part_of(const Tensor& sequences) const {
  TESSERA_REQUIRE(
      sequences.dimensions() >= 2 && sequences.size(1) % ranks() == 0,
      "ContextParallel::part_of a tensor of shape {}: [batch, T, ...] is required, with "
      "a T that {} ranks divide",
      sequences.shape().to_string(), ranks());
  const std::int64_t length = sequences.size(1) / ranks();
  return narrow(sequences.detach(), 1, part() * length, length);
}

Tensor ContextParallel::attention(Tensor q, Tensor k, Tensor v,
                                  const AttentionOptions& options) const {
  const std::int64_t size = impl_->size();
  if (size == 1) return tessera::attention(q, k, v, options);
  check_options(options);
  if (options.heads % size != 0) return impl_->of_own_positions(q, k, v, options);
  const std::int64_t key_heads = options.key_heads == 0 ? options.heads : options.key_heads;
  const std::int64_t times = repeats_of(options.heads, key_heads, size);
  AttentionOptions own = impl_->options_of_part(options);
  own.key_heads = key_heads * times / size;
  const std::string purpose = purpose_of(options);
  q = impl_->to_heads(std::move(q), purpose);
  k = impl_->to_heads(repeated_heads(std::move(k), key_heads, times), purpose);
  v = impl_->to_heads(repeated_heads(std::move(v), key_heads, times), purpose);
  return impl_->to_positions(tessera::attention(q, k, v, own), purpose);
}

Tensor ContextParallel::packed_attention(Tensor qkv, const AttentionOptions& options) const {
  const std::int64_t size = impl_->size();
  if (size == 1) return tessera::packed_attention(qkv, options);
  const std::int64_t key_heads = options.key_heads == 0 ? options.heads : options.key_heads;
  const std::int64_t all_heads = options.heads + 2 * key_heads;
  TESSERA_REQUIRE(qkv.dimensions() == 3 && qkv.size(2) % all_heads == 0,
                  "ContextParallel::packed_attention of shape {}; [batch, T, (heads + 2 * "
                  "key_heads) * D] with {} heads and {} key heads is required",
                  qkv.shape().to_string(), options.heads, key_heads);
  const std::int64_t head = qkv.size(2) / all_heads;
  const bool divides = options.heads % size == 0 && key_heads % size == 0;
  if (divides && options.heads == key_heads) {
    check_options(options);
    const std::int64_t batch = qkv.size(0), length = qkv.size(1);
    const std::int64_t width = key_heads / size * head;
    qkv = permute(reshape(qkv, {batch, length, 3, size, width}), {3, 0, 1, 2, 4});
    qkv = reshape(qkv, {size, batch, length, 3 * width});
    return impl_->of_packed_pieces(std::move(qkv), options, key_heads);
  }
  std::vector<Tensor> parts =
      split(qkv, {options.heads * head, key_heads * head, key_heads * head}, -1);
  qkv = {};
  if (!divides) {
    return attention(std::move(parts[0]), std::move(parts[1]), std::move(parts[2]), options);
  }
  check_options(options);
  // A rank's piece is packed as the whole is.
  for (Tensor& part : parts) part = pieces_of_width(part, size);
  Tensor pieces = concatenate(parts, -1);
  parts.clear();
  return impl_->of_packed_pieces(std::move(pieces), options, key_heads);
}

void ContextParallel::record(std::shared_ptr<StepRecorder> recorder) const {
  if (!recorder) return impl_->collectives->set_observer({});
  impl_->collectives->set_observer(
      [recorder = std::move(recorder)](const ExchangeCall& call,
                                       const std::function<void()>& work) {
        Span span{kind_of(call.kind), Lane::compute, call.phase};
        span.bytes = call.bytes;
        const ComputeScope waits(recorder.get(), span);
        work();
      });
}

CommunicationStatistics ContextParallel::communication() const {
  const ExchangeCounts counts = impl_->collectives->counts();
  CommunicationStatistics statistics;
  statistics.bytes = counts.bytes;
  statistics.bytes_between_hosts = impl_->ranks().bytes_between_hosts();
  statistics.collectives = counts.calls;
  statistics.allocations = counts.allocations;
  statistics.buffers = counts.allocations > 0 ? 1 : 0;
  statistics.buffer_bytes = counts.buffer_bytes;
  statistics.exposed_seconds = counts.seconds;
  return statistics;
}

}  // namespace tessera
