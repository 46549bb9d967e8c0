// The ranks of one emulated NCCL communicator, and their pending calls.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tessera::emulator {

enum class CollectiveKind : std::uint8_t { all_gather, reduce_scatter, reduce, all_reduce };

// One rank's call.
struct CollectiveCall {
  CollectiveKind kind;
  const void* send;
  void* receive;
  std::size_t count;  // as NCCL counts it for this kind
  ncclDataType_t type;
  int root;  // of a reduce
  cudaStream_t stream;
  cudaEvent_t ready;  // recorded at the call
};
struct TransferCall {
  const void* send;
  void* receive;
  std::size_t bytes;
  cudaStream_t stream;
  cudaEvent_t ready;
};

class Clique;

// The target of an ncclComm_t.
struct Membership {
  std::mutex mutex;
  std::shared_ptr<Clique> clique;  // null until a split has brought all ranks together
  int rank = 0;
  // A split in progress: the child, and where the caller wants its address. It gets it when it asks
  // for this communicator's status after all ranks have come, as with NCCL.
  std::unique_ptr<Membership> child;
  ncclComm_t* child_address = nullptr;
};

class Clique {
 public:
  explicit Clique(int size) : calls_(static_cast<std::size_t>(size)), pending_(calls_.size()) {}

  [[nodiscard]] int size() const { return static_cast<int>(calls_.size()); }
  void join();
  void collective(int rank, const CollectiveCall& call);
  void send(int rank, int peer, const TransferCall& call);
  void receive(int rank, int peer, const TransferCall& call);
  // Once all ranks have called, the memberships of each colour become a clique of their own.
  void split(int rank, int color, int key, Membership* membership);
  void leave(int rank);
  // ncclInProgress while the rank has calls that wait for other ranks.
  [[nodiscard]] ncclResult_t status(int rank);

 private:
  struct SplitCall {
    int color, key;
    Membership* membership;
  };
  void run_collectives();
  void run_transfers(int from, int to);
  void run_splits();

  std::mutex mutex_;
  int joined_ = 0;
  std::vector<std::deque<CollectiveCall>> calls_;                             // by rank
  std::map<std::pair<int, int>, std::deque<TransferCall>> sends_, receives_;  // by (from, to)
  std::map<int, std::deque<SplitCall>> splits_;                               // by rank
  std::vector<int> pending_;  // by rank: calls that wait for other ranks
  ncclResult_t error_ = ncclSuccess;
};

// The clique of an id; the first rank that asks creates it.
std::shared_ptr<Clique> clique_of_id(const std::string& id, int size);

}  // namespace tessera::emulator
