// What goes between hosts, as what, and in which memory on its way: by arithmetic alone, so that a
// plan has it too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "comm/hosts/topology.h"

namespace tessera::comm {

// What is worked on between two looks at the network, as it travels: a few of them fit into a
// core's cache.
inline constexpr std::size_t hosts_piece_bytes = std::size_t{64} << 10;
// A memory for the sums of all_reduce that a host's ranks share.
inline constexpr std::size_t hosts_sums_bytes = std::size_t{8} << 20;

// Elements on their way. What is encoded has been rounded to the format, so that nothing is lost.
struct Travelling {
  DType dtype = DType::float32;
  WireFormat wire = WireFormat::same;

  [[nodiscard]] bool encoded() const { return wire != WireFormat::same; }
  [[nodiscard]] std::size_t bytes(std::int64_t count) const {
    return encoded() ? wire_bytes(wire, count) : static_cast<std::size_t>(count) * size_of(dtype);
  }
  // Elements of a piece: as many whole blocks as travel in its bytes.
  [[nodiscard]] std::int64_t piece() const {
    return static_cast<std::int64_t>(hosts_piece_bytes / bytes(wire_block)) * wire_block;
  }
  // Where elements may be cut, counted from where blocks begin.
  [[nodiscard]] std::int64_t grid() const { return encoded() ? wire_block : 1; }

  // Between `elements` and what travels; not of what travels as it is.
  void encode(const std::byte* elements, std::int64_t count, std::byte* travels) const;
  void decode(std::byte* travels, std::int64_t count, std::byte* elements) const;
};

// What host sums and partial results are kept in.
inline DType wide_of(DType dtype) {
  return dtype == DType::float64 ? DType::float64 : DType::float32;
}

// How a sum over all ranks (kernels::ReduceRanks with `group`) is made over hosts. Where each
// host's ranks are a whole subtree, a host sends its sum, unless the ranks' contributions
// themselves take fewer bytes.
struct SumOverHosts {
  bool by_host = false;
  int group_inside = 0;   // of the sum over a host's ranks
  int group_of_sums = 0;  // of the sum over the hosts' sums, or over all ranks
  Travelling travelling{};
};
SumOverHosts sum_over_hosts(const Topology& topology, int group, Travelling contributions);

// The memory of pieces on their way in a reduction, in bytes.
struct ReductionScratch {
  std::size_t incoming = 0;  // of a piece of this rank's sums, from all other hosts; there are two
  std::size_t decoded = 0;   // the same in its own type, of one piece
  std::size_t sum = 0;       // of a piece, in the wide type; there are two
  std::size_t outgoing = 0;  // of a piece of a client's sums; there are two for each
  std::size_t clients = 0;

  [[nodiscard]] std::size_t bytes() const {
    return 2 * incoming + decoded + 2 * sum + 2 * clients * outgoing;
  }
};
ReductionScratch reduction_scratch(const Topology& topology, const SumOverHosts& plan);

// Of gathers of which a part travels encoded: two pieces of this rank's shares, and two of each
// client's.
std::size_t hosts_gather_scratch(const Topology& topology,
                                 const std::vector<GatheredRange>& ranges);

}  // namespace tessera::comm
