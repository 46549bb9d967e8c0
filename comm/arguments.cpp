// The checks, and their messages.
#include "comm/arguments.h"

#include <bit>

#include "base/error.h"

namespace tessera::comm {
namespace {

std::int64_t elements_of(const Buffer& buffer, DType dtype) {
  return static_cast<std::int64_t>(buffer.bytes() / size_of(dtype));
}

void check_reduction(Op op, const Buffer& buffer, const Reduction& reduction) {
  TESSERA_REQUIRE(buffer.sharing() == Sharing::per_rank,
                  "{} of '{}': the buffer has to be shared per_rank", name_of(op), buffer.name());
  const DType out = reduction.out_dtype;
  TESSERA_REQUIRE(is_floating(reduction.in_dtype) &&
                      (out == float32 || out == float64 || out == reduction.in_dtype),
                  "{} of '{}': {} cannot be summed into {}", name_of(op), buffer.name(),
                  tessera::name_of(reduction.in_dtype), tessera::name_of(out));
  TESSERA_REQUIRE(reduction.group >= 0, "{} of '{}': groups of {} ranks", name_of(op),
                  buffer.name(), reduction.group);
}

}  // namespace

std::size_t check_all_gather(const Buffer& buffer, const std::vector<GatheredRange>& ranges,
                             int ranks) {
  TESSERA_REQUIRE(buffer.sharing() == Sharing::one_copy,
                  "all_gather of '{}': the buffer has to be shared as one_copy", buffer.name());
  std::size_t bytes = 0;
  for (const GatheredRange& range : ranges) {
    TESSERA_REQUIRE(range.first <= buffer.bytes() && range.bytes <= buffer.bytes() - range.first,
                    "all_gather of '{}': bytes {} to {}, and it has {}", buffer.name(), range.first,
                    range.first + range.bytes, buffer.bytes());
    TESSERA_REQUIRE(range.bytes % static_cast<std::size_t>(ranks) == 0,
                    "all_gather of '{}': {} bytes do not divide into {} shares", buffer.name(),
                    range.bytes, ranks);
    bytes += range.bytes;
  }
  return bytes;
}

void check_reduce_scatter(const Buffer& buffer, const std::vector<ReducedRange>& ranges,
                          const Reduction& reduction) {
  check_reduction(Op::reduce_scatter, buffer, reduction);
  const std::int64_t elements = elements_of(buffer, reduction.in_dtype);
  for (const ReducedRange& range : ranges) {
    TESSERA_REQUIRE(range.first >= 0 && range.count >= 0 && range.first <= elements &&
                        range.count <= elements - range.first,
                    "reduce_scatter of '{}': elements {} to {} are not in its {}", buffer.name(),
                    range.first, range.first + range.count, elements);
    TESSERA_REQUIRE(range.count == 0 || range.out != nullptr,
                    "reduce_scatter of '{}': a range without an output", buffer.name());
  }
}

void check_all_reduce(const Buffer& buffer, std::int64_t count, const void* out,
                      const Reduction& reduction) {
  check_reduction(Op::all_reduce, buffer, reduction);
  const std::int64_t elements = elements_of(buffer, reduction.in_dtype);
  TESSERA_REQUIRE(count >= 0 && count <= elements, "all_reduce of '{}': {} elements, and it has {}",
                  buffer.name(), count, elements);
  TESSERA_REQUIRE(count == 0 || out != nullptr, "all_reduce of '{}' without an output",
                  buffer.name());
}

void check_broadcast(std::string_view communicator, int root, int ranks) {
  TESSERA_REQUIRE(root >= 0 && root < ranks, "broadcast on '{}' from rank {} of {}", communicator,
                  root, ranks);
}

Call call_of_message(std::string_view communicator, int rank, int peer, int ranks,
                     std::size_t bytes, bool receives, Tag tag) {
  TESSERA_REQUIRE(peer >= 0 && peer < ranks && peer != rank,
                  "{} on '{}': rank {} of {} has no peer {}", receives ? "receive" : "send",
                  communicator, rank, ranks, peer);
  Call call(Op::send, tag);
  call.bytes = bytes;
  call.root = receives ? rank : peer;
  return call;
}

Call with_reduction(Call call, const Reduction& reduction) {
  call.in_dtype = reduction.in_dtype;
  call.out_dtype = reduction.out_dtype;
  call.accumulate = reduction.accumulate;
  call.group = reduction.group;
  call.scale_bits = std::bit_cast<std::uint32_t>(reduction.scale);
  return call;
}

}  // namespace tessera::comm
