// Matches the calls of the ranks and puts their work into the streams.
#include "emulator/nccl/clique.h"

#include <algorithm>
#include <tuple>

#include "emulator/nccl/kernels.h"

namespace tessera::emulator {
namespace {

bool agree(const CollectiveCall& a, const CollectiveCall& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.root == b.root;
}

// Every stream waits for the work that preceded the other ranks' calls, or for their reads.
void wait_for_all(const std::vector<cudaStream_t>& streams,
                  const std::vector<cudaEvent_t>& events) {
  for (const cudaStream_t stream : streams) {
    for (const cudaEvent_t event : events) (void)cudaStreamWaitEvent(stream, event, 0);
  }
}

std::vector<cudaEvent_t> record_all(const std::vector<cudaStream_t>& streams) {
  std::vector<cudaEvent_t> events;
  for (const cudaStream_t stream : streams) {
    cudaEvent_t event = nullptr;
    (void)cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    (void)cudaEventRecord(event, stream);
    events.push_back(event);
  }
  return events;
}

void destroy_all(const std::vector<cudaEvent_t>& events) {
  for (const cudaEvent_t event : events) (void)cudaEventDestroy(event);
}

// The number of elements in a rank's result, and the offset of the first in the data that each rank
// sends.
std::pair<std::size_t, std::size_t> result_of(const CollectiveCall& call, int rank) {
  switch (call.kind) {
    case CollectiveKind::reduce_scatter:
      return {call.count, static_cast<std::size_t>(rank) * call.count};
    case CollectiveKind::reduce:
      return {rank == call.root ? call.count : 0, 0};
    case CollectiveKind::all_reduce:
      return {call.count, 0};
    case CollectiveKind::all_gather:
      break;
  }
  return {0, 0};
}

}  // namespace

void Clique::join() {
  const std::lock_guard lock(mutex_);
  ++joined_;
}

void Clique::leave(int rank) {
  const std::lock_guard lock(mutex_);
  const auto place = static_cast<std::size_t>(rank);
  for (const CollectiveCall& call : calls_[place]) (void)cudaEventDestroy(call.ready);
  calls_[place].clear();
  splits_.erase(rank);
  pending_[place] = 0;
}

ncclResult_t Clique::status(int rank) {
  const std::lock_guard lock(mutex_);
  if (error_ != ncclSuccess) return error_;
  const bool waits = joined_ < size() || pending_[static_cast<std::size_t>(rank)] > 0;
  return waits ? ncclInProgress : ncclSuccess;
}

void Clique::collective(int rank, const CollectiveCall& call) {
  const std::lock_guard lock(mutex_);
  calls_[static_cast<std::size_t>(rank)].push_back(call);
  ++pending_[static_cast<std::size_t>(rank)];
  run_collectives();
}

void Clique::run_collectives() {
  const auto complete = [&] {
    return std::none_of(calls_.begin(), calls_.end(),
                        [](const auto& of_rank) { return of_rank.empty(); });
  };
  while (error_ == ncclSuccess && complete()) {
    std::vector<CollectiveCall> calls;
    std::vector<cudaStream_t> streams;
    std::vector<cudaEvent_t> ready;
    for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
      calls.push_back(calls_[rank].front());
      calls_[rank].pop_front();
      --pending_[rank];
      streams.push_back(calls.back().stream);
      ready.push_back(calls.back().ready);
    }
    for (const CollectiveCall& call : calls) {
      if (!agree(call, calls.front())) error_ = ncclInvalidArgument;
    }
    if (error_ == ncclSuccess) {
      wait_for_all(streams, ready);
      std::vector<const void*> sources;
      for (const CollectiveCall& call : calls) sources.push_back(call.send);
      for (int rank = 0; rank < size(); ++rank) {
        const CollectiveCall& call = calls[static_cast<std::size_t>(rank)];
        if (call.kind == CollectiveKind::all_gather) {
          enqueue_gather(call.stream, sources, rank, call.receive, call.count);
        } else {
          const auto [count, first] = result_of(call, rank);
          enqueue_sum(call.stream, sources, first, call.receive, count, call.type);
        }
      }
      const std::vector<cudaEvent_t> done = record_all(streams);
      wait_for_all(streams, done);
      destroy_all(done);
    }
    destroy_all(ready);
  }
}

void Clique::send(int rank, int peer, const TransferCall& call) {
  const std::lock_guard lock(mutex_);
  sends_[{rank, peer}].push_back(call);
  ++pending_[static_cast<std::size_t>(rank)];
  run_transfers(rank, peer);
}

void Clique::receive(int rank, int peer, const TransferCall& call) {
  const std::lock_guard lock(mutex_);
  receives_[{peer, rank}].push_back(call);
  ++pending_[static_cast<std::size_t>(rank)];
  run_transfers(peer, rank);
}

void Clique::run_transfers(int from, int to) {
  auto& sends = sends_[{from, to}];
  auto& receives = receives_[{from, to}];
  while (!sends.empty() && !receives.empty()) {
    const TransferCall sent = sends.front();
    const TransferCall received = receives.front();
    sends.pop_front();
    receives.pop_front();
    --pending_[static_cast<std::size_t>(from)];
    --pending_[static_cast<std::size_t>(to)];
    if (sent.bytes != received.bytes) {
      error_ = ncclInvalidArgument;
    } else {
      (void)cudaStreamWaitEvent(received.stream, sent.ready, 0);
      (void)cudaMemcpyAsync(received.receive, sent.send, sent.bytes, cudaMemcpyDeviceToDevice,
                            received.stream);
      const std::vector<cudaEvent_t> done = record_all({received.stream});
      (void)cudaStreamWaitEvent(sent.stream, done.front(), 0);
      destroy_all(done);
    }
    destroy_all({sent.ready, received.ready});
  }
}

void Clique::split(int rank, int color, int key, Membership* membership) {
  const std::lock_guard lock(mutex_);
  splits_[rank].push_back({color, key, membership});
  ++pending_[static_cast<std::size_t>(rank)];
  run_splits();
}

void Clique::run_splits() {
  const auto complete = [&] {
    return splits_.size() == calls_.size() &&
           std::none_of(splits_.begin(), splits_.end(),
                        [](const auto& of_rank) { return of_rank.second.empty(); });
  };
  while (complete()) {
    std::map<int, std::vector<std::tuple<int, int, Membership*>>> colors;  // (key, rank, owner)
    for (auto& [rank, calls] : splits_) {
      const SplitCall call = calls.front();
      calls.pop_front();
      --pending_[static_cast<std::size_t>(rank)];
      colors[call.color].emplace_back(call.key, rank, call.membership);
    }
    for (auto& [color, members] : colors) {
      std::sort(members.begin(), members.end());
      const auto clique = std::make_shared<Clique>(static_cast<int>(members.size()));
      clique->joined_ = clique->size();
      int rank = 0;
      for (const auto& [key, parent_rank, membership] : members) {
        const std::lock_guard member_lock(membership->mutex);
        membership->rank = rank++;
        membership->clique = clique;
      }
    }
  }
}

std::shared_ptr<Clique> clique_of_id(const std::string& id, int size) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Clique>> cliques;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Clique> clique = cliques[id].lock();
  if (!clique) {
    clique = std::make_shared<Clique>(size);
    cliques[id] = clique;
  }
  return clique;
}

}  // namespace tessera::emulator
