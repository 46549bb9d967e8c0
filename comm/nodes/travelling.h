// The data between nodes: its format and the memory that it needs on the way. This file only
// computes sizes, so that a plan can use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/nodes/topology.h"

namespace tessera::comm {

// Encoded bytes that are processed between two looks at the network: a few such pieces fit into a
// core's cache.
inline constexpr std::size_t nodes_piece_bytes = std::size_t{64} << 10;
// The buffer for the sums of all_reduce that a node's ranks share.
inline constexpr std::size_t nodes_sums_bytes = std::size_t{8} << 20;

// Elements on their way. Encoded elements have already been rounded to the format, so nothing is
// lost.
struct Travelling {
  DType dtype = DType::float32;
  WireFormat wire = WireFormat::same;

  [[nodiscard]] bool encoded() const { return wire != WireFormat::same; }
  [[nodiscard]] std::size_t bytes(std::int64_t count) const {
    return encoded() ? wire_bytes(wire, count) : static_cast<std::size_t>(count) * size_of(dtype);
  }
  // Elements of a piece: as many whole blocks as fit into its encoded bytes.
  [[nodiscard]] std::int64_t piece() const {
    return static_cast<std::int64_t>(nodes_piece_bytes / bytes(wire_block)) * wire_block;
  }
  // Elements may be cut at multiples of this, counted from the beginning of a block.
  [[nodiscard]] std::int64_t grid() const { return encoded() ? wire_block : 1; }

  // Converts between `elements` and their encoded form; not for data that travels unchanged.
  void encode(const std::byte* elements, std::int64_t count, std::byte* travels) const;
  void decode(std::byte* travels, std::int64_t count, std::byte* elements) const;
};

// The type of nodes' sums and partial results.
inline DType wide_of(DType dtype) {
  return dtype == DType::float64 ? DType::float64 : DType::float32;
}

// How ranks on several nodes compute a sum over all ranks (kernels::ReduceRanks with `group`). When
// each node's ranks are a whole subtree, a node sends its sum, unless the ranks' contributions
// themselves take fewer bytes.
struct SumOverNodes {
  bool by_node = false;
  int group_inside = 0;   // of the sum over a node's ranks
  int group_of_sums = 0;  // of the sum over the nodes' sums, or over all ranks
  Travelling travelling{};
};
SumOverNodes sum_over_nodes(const Topology& topology, int group, Travelling contributions);

// The memory of pieces on their way in a reduction, in bytes.
struct ReductionScratch {
  std::size_t incoming = 0;  // of a piece of this rank's sums, from all other nodes; there are two
  std::size_t decoded = 0;   // the same in its own type, of one piece
  std::size_t sum = 0;       // of a piece, in the wide type; there are two
  std::size_t outgoing = 0;  // of a piece of a client's sums; there are two for each
  std::size_t clients = 0;

  [[nodiscard]] std::size_t bytes() const {
    return 2 * incoming + decoded + 2 * sum + 2 * clients * outgoing;
  }
};
ReductionScratch reduction_scratch(const Topology& topology, const SumOverNodes& plan);

// The scratch of gathers of which a part is sent encoded: two pieces of this rank's shards, and two
// of each client's.
std::size_t nodes_gather_scratch(const Topology& topology,
                                 const std::vector<GatheredRange>& ranges);

}  // namespace tessera::comm
