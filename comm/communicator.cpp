// The checks of the arguments, which are the same for all communicators. Each throws a logic_error
// that names the call and the buffer.
#include "comm/communicator.h"

#include <utility>

#include "base/error.h"
#include "comm/call.h"

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

void check_peer(std::string_view call, const ControlGroup& group, int peer) {
  TESSERA_REQUIRE(peer >= 0 && peer < group.size() && peer != group.rank(),
                  "{} on '{}': rank {} of {} has no peer {}", call, group.name(), group.rank(),
                  group.size(), peer);
}

void check_blocks(int ranks, int size, std::string_view name) {
  TESSERA_REQUIRE(ranks > 0 && size % ranks == 0, "split into '{}': {} ranks in blocks of {}", name,
                  size, ranks);
}

}  // namespace

std::vector<std::string> ControlGroup::exchange(std::string_view message, Tag tag) {
  return exchange(Call(Op::exchange, tag), message);
}

std::string ControlGroup::broadcast(std::string_view message, int root, Tag tag) {
  check_root(root);
  Call call(Op::broadcast, tag);
  call.root = root;
  return std::move(exchange(call, message)[static_cast<std::size_t>(root)]);
}

void ControlGroup::barrier(Tag tag) {
  (void)exchange(Call(Op::barrier, tag), {});
}

void ControlGroup::check_root(int root) const {
  TESSERA_REQUIRE(root >= 0 && root < size(), "broadcast on '{}' from rank {} of {}", name(), root,
                  size());
}

std::size_t total_bytes(const std::vector<GatheredRange>& ranges) {
  std::size_t bytes = 0;
  for (const GatheredRange& range : ranges) bytes += range.bytes;
  return bytes;
}

void Communicator::all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges, Tag tag) {
  TESSERA_REQUIRE(buffer.sharing() == Sharing::one_copy,
                  "all_gather of '{}': the buffer has to be shared as one_copy", buffer.name());
  for (const GatheredRange& range : ranges) {
    TESSERA_REQUIRE(range.first <= buffer.bytes() && range.bytes <= buffer.bytes() - range.first,
                    "all_gather of '{}': bytes {} to {}, and it has {}", buffer.name(), range.first,
                    range.first + range.bytes, buffer.bytes());
    TESSERA_REQUIRE(range.bytes % static_cast<std::size_t>(size()) == 0,
                    "all_gather of '{}': {} bytes do not divide into {} shares", buffer.name(),
                    range.bytes, size());
  }
  do_all_gather(buffer, ranges, tag);
}

void Communicator::reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges,
                                  const Reduction& reduction, Tag tag) {
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
  do_reduce_scatter(buffer, ranges, reduction, tag);
}

void Communicator::all_reduce(Buffer& buffer, std::int64_t count, void* out,
                              const Reduction& reduction, Tag tag) {
  check_reduction(Op::all_reduce, buffer, reduction);
  const std::int64_t elements = elements_of(buffer, reduction.in_dtype);
  TESSERA_REQUIRE(count >= 0 && count <= elements, "all_reduce of '{}': {} elements, and it has {}",
                  buffer.name(), count, elements);
  TESSERA_REQUIRE(count == 0 || out != nullptr, "all_reduce of '{}' without an output",
                  buffer.name());
  do_all_reduce(buffer, count, out, reduction, tag);
}

void Communicator::all_to_all(Buffer& buffer, std::size_t bytes, void* out, Tag tag) {
  TESSERA_REQUIRE(buffer.sharing() == Sharing::per_rank,
                  "all_to_all of '{}': the buffer has to be shared per_rank", buffer.name());
  TESSERA_REQUIRE(bytes <= buffer.bytes() / static_cast<std::size_t>(size()),
                  "all_to_all of '{}': {} pieces of {} bytes, and it has {}", buffer.name(), size(),
                  bytes, buffer.bytes());
  TESSERA_REQUIRE(bytes == 0 || out != nullptr, "all_to_all of '{}' without an output",
                  buffer.name());
  do_all_to_all(buffer, bytes, out, tag);
}

void Communicator::send(const void* memory, std::size_t bytes, int to, Tag tag) {
  check_peer("send", control(), to);
  do_send(memory, bytes, to, tag);
}

void Communicator::receive(void* memory, std::size_t bytes, int from, Tag tag) {
  check_peer("receive", control(), from);
  do_receive(memory, bytes, from, tag);
}

void Communicator::broadcast(void* memory, std::size_t bytes, int root, Tag tag) {
  control().check_root(root);
  do_broadcast(memory, bytes, root, tag);
}

std::shared_ptr<Communicator> Communicator::split_blocks(int ranks, std::string_view name) {
  check_blocks(ranks, size(), name);
  return do_split_evenly(rank() / ranks, {rank() % ranks, ranks, 1}, name);
}

std::shared_ptr<Communicator> Communicator::split_across_blocks(int ranks, std::string_view name) {
  check_blocks(ranks, size(), name);
  return do_split_evenly(rank() % ranks, {rank() / ranks, size() / ranks, ranks}, name);
}

}  // namespace tessera::comm
