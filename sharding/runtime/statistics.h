// The counters of the sharding runtime, which make communication a measured number.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

struct CommunicationStatistics {
  std::uint64_t bytes = 0;  // that reached this rank from others: gathers and reductions
  std::uint64_t bytes_between_hosts = 0;  // that this rank sent, over all models
  std::uint64_t collectives = 0;
  std::uint64_t allocations = 0;   // of collective memory; none after construction and no_sync()
  std::uint64_t buffers = 0;       // collective buffers held now, with the scratch of reductions
  std::uint64_t buffer_bytes = 0;  // of this rank's region, or of the copy that ranks share
  double exposed_seconds = 0;      // the compute stream stood still for a collective
  double busy_seconds = 0;         // side streams were at work, hidden or not

  CommunicationStatistics& operator+=(const CommunicationStatistics& other) {
    bytes += other.bytes;
    bytes_between_hosts = std::max(bytes_between_hosts, other.bytes_between_hosts);
    collectives += other.collectives;
    allocations += other.allocations;
    buffers += other.buffers;
    buffer_bytes += other.buffer_bytes;
    exposed_seconds += other.exposed_seconds;
    busy_seconds += other.busy_seconds;
    return *this;
  }
};

struct HeldBytes {
  std::size_t parameters = 0;  // master shards, whole parameters of ignored modules, buffers
  std::size_t gradients = 0;   // reduced gradients
  std::size_t optimizer = 0;   // filled in by code that knows the optimizer
  [[nodiscard]] std::size_t total() const { return parameters + gradients + optimizer; }
};

}  // namespace tessera
