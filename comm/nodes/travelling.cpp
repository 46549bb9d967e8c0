// Encoding, splitting the tree of sums over nodes, and sizes.
#include "comm/nodes/travelling.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "engine/device/launch.h"

namespace tessera::comm {

void Travelling::encode(const std::byte* elements, std::int64_t count, std::byte* travels) const {
  TESSERA_LAUNCH(Device::cpu(), wire,
                 {kernels::WireStep::encode, wire, elements, nullptr, travels,
                  travels + wire_payload_bytes(wire, count), count, dtype, dtype});
}

void Travelling::decode(std::byte* travels, std::int64_t count, std::byte* elements) const {
  TESSERA_LAUNCH(Device::cpu(), wire,
                 {kernels::WireStep::decode, wire, nullptr, elements, travels,
                  travels + wire_payload_bytes(wire, count), count, dtype, dtype});
}

SumOverNodes sum_over_nodes(const Topology& topology, int group, Travelling contributions) {
  const int ranks = topology.ranks();
  if (group == 0 || group > ranks) group = ranks;
  const SumOverNodes by_rank{false, 0, group, contributions};
  const Travelling sums{wide_of(contributions.dtype)};
  const auto each = topology.ranks_of(0).size();
  int expected = 0;
  for (int node = 0; node < topology.nodes(); ++node) {
    if (topology.ranks_of(node).size() != each) return by_rank;
    for (const int rank : topology.ranks_of(node)) {
      if (rank != expected++) return by_rank;
    }
  }
  // A node's sum has one wide element for `each` narrow elements of its contributions.
  if (each == 1 || sums.bytes(wire_block) > each * contributions.bytes(wire_block)) return by_rank;
  const int inside = static_cast<int>(each);
  // 2^k consecutive ranks at a multiple of 2^k are a subtree of the binary tree of a group...
  if (group % inside == 0 && std::has_single_bit(each)) {
    return {true, inside, group / inside, sums};
  }
  // ... and 2^k whole groups are one of the tree over the groups.
  if (inside % group == 0 && std::has_single_bit(static_cast<unsigned>(inside / group))) {
    return {true, group, topology.nodes(), sums};
  }
  return by_rank;
}

ReductionScratch reduction_scratch(const Topology& topology, const SumOverNodes& plan) {
  std::size_t parts = 0;  // of a piece, from the other nodes
  for (int node = 0; node < topology.nodes(); ++node) {
    if (node != topology.own_node()) parts += plan.by_node ? 1 : topology.ranks_of(node).size();
  }
  ReductionScratch scratch;
  scratch.incoming = parts * nodes_piece_bytes;
  scratch.clients = topology.clients().size();
  const Travelling& travelling = plan.travelling;
  if (plan.by_node) scratch.outgoing = scratch.sum = nodes_piece_bytes;
  if (travelling.encoded()) {
    scratch.outgoing = topology.ranks_of(topology.own_node()).size() * nodes_piece_bytes;
    scratch.decoded =
        parts * static_cast<std::size_t>(travelling.piece()) * size_of(travelling.dtype);
  }
  return scratch;
}

std::size_t nodes_gather_scratch(const Topology& topology,
                                 const std::vector<GatheredRange>& ranges) {
  const bool any = std::any_of(ranges.begin(), ranges.end(), [](const GatheredRange& range) {
    return range.wire != WireFormat::same && range.bytes > 0;
  });
  return any ? (2 + 2 * topology.clients().size()) * nodes_piece_bytes : 0;
}

}  // namespace tessera::comm
