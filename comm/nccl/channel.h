// One NCCL communicator: its collectives over raw device memory.
//
// Non-blocking throughout: every call returns within its deadline or throws, whatever the peers do.
// Used by one thread at a time, except for abort().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/device/queue.h"

namespace tessera::cuda {
struct NcclFunctions;
}

namespace tessera::comm {

class NcclChannel {
 public:
  // The id of a new channel, which one rank makes and gives to the others.
  static std::string make_id(const cuda::NcclFunctions& functions);
  // Collective over `size` ranks. `look` is called regularly while a call waits for other ranks,
  // and throws when it need not wait any longer.
  static std::unique_ptr<NcclChannel> open(const cuda::NcclFunctions& functions,
                                           const std::string& id, int size, int rank,
                                           std::chrono::milliseconds timeout,
                                           std::function<void()> look);
  ~NcclChannel();
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  // Collective: a channel of the ranks that pass the same colour, ordered by (key, rank). `rank` is
  // this rank's place among them.
  std::unique_ptr<NcclChannel> split(int color, int key, int rank);

  // All parts of one call form one NCCL group. Rank r's shard lies at begin + r * share_bytes
  // before the call, all shards after it.
  struct Gathered {
    std::byte* begin;
    std::size_t share_bytes;
  };
  void all_gather(const std::vector<Gathered>& parts, DeviceQueue& queue);
  // out = this rank's `count` elements of the sum of all ranks' `in`; NCCL's order, in dtype.
  struct Scattered {
    const std::byte* in;
    std::byte* out;
    std::int64_t count;
  };
  void reduce_scatter(const std::vector<Scattered>& parts, DType dtype, DeviceQueue& queue);
  void all_reduce(const std::byte* in, std::byte* out, std::int64_t count, DType dtype,
                  DeviceQueue& queue);
  // Each sum goes to one rank; only that rank uses `to`. The list is the same on every rank.
  struct Sum {
    int root;
    const std::byte* from;
    std::byte* to;
    std::int64_t count;
  };
  void reduce_each(const std::vector<Sum>& sums, DType dtype, DeviceQueue& queue);
  // Bytes between pairs of ranks. A rank receives messages of a peer in the order in which the peer
  // sent them.
  struct Transfer {
    int peer;
    const std::byte* send;  // null: it is received
    std::byte* receive;     // null: it is sent
    std::size_t bytes;
  };
  void transfer(const std::vector<Transfer>& transfers, DeviceQueue& queue);

  // An error that NCCL has detected meanwhile.
  [[nodiscard]] std::optional<std::string> asynchronous_error() const;
  // Ends all work under way; later calls throw. From any thread.
  void abort() noexcept;

 private:
  struct State;
  explicit NcclChannel(std::unique_ptr<State> state);
  template <class Body>
  auto grouped(const Body& body, std::size_t count);
  std::unique_ptr<State> state_;
};

}  // namespace tessera::comm
