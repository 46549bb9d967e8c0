// NCCL's calls; none of them may hang.
#include "comm/nccl/channel.h"

#include <nccl.h>

#include <cstring>
#include <exception>
#include <list>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "comm/nccl/nccl_library.h"
#include "kernels/cuda/device/context.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

// After this time a wait for other ranks looks less often.
constexpr std::chrono::milliseconds slow_after{100};

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return ncclFloat32;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::float16:
      return ncclFloat16;
    case DType::float64:
      return ncclFloat64;
    default:
      misuse("NCCL does not sum {}", name_of(dtype));
  }
}

cudaStream_t stream_of(DeviceQueue& queue) {
  return kernels::cuda::context_of(queue.native()).stream;
}

}  // namespace

struct NcclChannel::State {
  const cuda::NcclFunctions* nccl = nullptr;
  ncclComm_t communicator = nullptr;
  int rank = 0;
  std::chrono::milliseconds timeout{0};
  std::function<void()> look;
  // NCCL frees an aborted communicator: no call may be inside it then. Calls do not block, so
  // abort() waits only for moments.
  mutable std::mutex mutex;
  bool aborted = false;
  // The results of splits. NCCL may write them until this communicator ends.
  std::list<ncclComm_t> children;

  // Makes a call and waits for its work.
  template <class Body>
  void call(const char* name, const Body& body) {
    ncclResult_t result = ncclSuccess;
    {
      const std::lock_guard lock(mutex);
      check_usable(name);
      result = body();
    }
    settle(result, name);
  }

  void settle(ncclResult_t result, const char* name) const {
    const auto begin = Clock::now();
    const auto deadline = begin + timeout;
    while (result == ncclInProgress) {
      TESSERA_CHECK(Clock::now() < deadline, ErrorCode::rank_failed,
                    "{} was not done after {} s: a rank does not take part", name,
                    std::chrono::duration<double>(timeout).count());
      // A longer wait is for other ranks, and must not take a core meanwhile.
      const auto waited = Clock::now() - begin;
      if (waited < std::chrono::milliseconds(2)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(waited < slow_after ? 1 : 10));
      }
      look();
      const std::lock_guard lock(mutex);
      check_usable(name);
      result = status();
    }
    TESSERA_CHECK(result == ncclSuccess, ErrorCode::rank_failed, "{} failed: {}", name,
                  nccl->GetErrorString(result));
  }

  // The caller holds the mutex.
  void check_usable(const char* name) const {
    TESSERA_CHECK(!aborted, ErrorCode::rank_failed, "{}: the communicator was aborted", name);
  }
  [[nodiscard]] ncclResult_t status() const {
    ncclResult_t status = ncclSuccess;
    const ncclResult_t result = nccl->CommGetAsyncError(communicator, &status);
    return result == ncclSuccess ? status : result;
  }
};

NcclChannel::NcclChannel(std::unique_ptr<State> state) : state_(std::move(state)) {}

std::string NcclChannel::make_id(const cuda::NcclFunctions& functions) {
  ncclUniqueId id;
  const ncclResult_t result = functions.GetUniqueId(&id);
  TESSERA_CHECK(result == ncclSuccess, ErrorCode::configuration,
                "ncclGetUniqueId failed: {}; NCCL_DEBUG=WARN prints more",
                functions.GetErrorString(result));
  return {id.internal, sizeof(id.internal)};
}

std::unique_ptr<NcclChannel> NcclChannel::open(const cuda::NcclFunctions& functions,
                                               const std::string& id, int size, int rank,
                                               std::chrono::milliseconds timeout,
                                               std::function<void()> look) {
  ncclUniqueId unique;
  TESSERA_REQUIRE(id.size() == sizeof(unique.internal), "{} bytes are not an NCCL id", id.size());
  std::memcpy(unique.internal, id.data(), id.size());
  auto state = std::make_unique<State>();
  state->nccl = &functions;
  state->rank = rank;
  state->timeout = timeout;
  state->look = std::move(look);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  State* opened = state.get();
  // From here on the destructor ends the work that was begun.
  std::unique_ptr<NcclChannel> channel(new NcclChannel(std::move(state)));
  opened->call("ncclCommInitRankConfig", [&] {
    return functions.CommInitRankConfig(&opened->communicator, size, unique, rank, &config);
  });
  return channel;
}

NcclChannel::~NcclChannel() {
  const std::lock_guard lock(state_->mutex);
  if (state_->communicator == nullptr || state_->aborted) return;
  state_->aborted = true;
  // Collectives are complete, or the job has failed. Without finalising, the destruction would wait
  // for peers that may be gone; so would finalising when this rank gives up.
  ncclResult_t status = std::uncaught_exceptions() > 0
                            ? ncclInternalError
                            : state_->nccl->CommFinalize(state_->communicator);
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  while (status == ncclInProgress && Clock::now() < deadline) {
    std::this_thread::yield();
    status = state_->status();
  }
  if (status == ncclSuccess) {
    state_->nccl->CommDestroy(state_->communicator);
  } else {
    state_->nccl->CommAbort(state_->communicator);
  }
}

// Calls body(functions, i) for i below count, as one group. Returns the first failure, else the
// group's result.
template <class Body>
auto NcclChannel::grouped(const Body& body, std::size_t count) {
  const cuda::NcclFunctions& nccl = *state_->nccl;
  if (count == 1) return body(nccl, 0);
  ncclResult_t first = nccl.GroupStart();
  for (std::size_t i = 0; i < count && (first == ncclSuccess || first == ncclInProgress); ++i) {
    const ncclResult_t result = body(nccl, i);
    if (result != ncclSuccess && result != ncclInProgress) first = result;
  }
  const ncclResult_t end = nccl.GroupEnd();
  return first == ncclSuccess || first == ncclInProgress ? end : first;
}

std::unique_ptr<NcclChannel> NcclChannel::split(int color, int key, int rank) {
  auto part = std::make_unique<State>();
  part->nccl = state_->nccl;
  part->rank = rank;
  part->timeout = state_->timeout;
  part->look = state_->look;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  State* opened = part.get();
  std::unique_ptr<NcclChannel> channel(new NcclChannel(std::move(part)));
  ncclComm_t& child = state_->children.emplace_back(nullptr);
  state_->call("ncclCommSplit", [&] {
    const ncclResult_t result =
        state_->nccl->CommSplit(state_->communicator, color, key, &child, &config);
    // The call may report success while its work goes on: the parent's status tells, and NCCL
    // writes the child's address when that work is done.
    return result == ncclSuccess ? ncclInProgress : result;
  });
  TESSERA_CHECK(child != nullptr, ErrorCode::rank_failed,
                "ncclCommSplit left no communicator for rank {}; NCCL_DEBUG=WARN prints more",
                rank);
  opened->communicator = child;
  opened->settle(ncclInProgress, "ncclCommSplit");
  return channel;
}

void NcclChannel::all_gather(const std::vector<Gathered>& parts, DeviceQueue& queue) {
  state_->call("ncclAllGather", [&] {
    return grouped(
        [&](const cuda::NcclFunctions& nccl, std::size_t i) {
          const Gathered& part = parts[i];
          if (part.share_bytes == 0) return ncclSuccess;
          const std::byte* own =
              part.begin + static_cast<std::size_t>(state_->rank) * part.share_bytes;
          return nccl.AllGather(own, part.begin, part.share_bytes, ncclInt8, state_->communicator,
                                stream_of(queue));
        },
        parts.size());
  });
}

void NcclChannel::reduce_scatter(const std::vector<Scattered>& parts, DType dtype,
                                 DeviceQueue& queue) {
  state_->call("ncclReduceScatter", [&] {
    return grouped(
        [&](const cuda::NcclFunctions& nccl, std::size_t i) {
          const Scattered& part = parts[i];
          if (part.count == 0) return ncclSuccess;
          return nccl.ReduceScatter(part.in, part.out, static_cast<std::size_t>(part.count),
                                    type_of(dtype), ncclSum, state_->communicator,
                                    stream_of(queue));
        },
        parts.size());
  });
}

void NcclChannel::all_reduce(const std::byte* in, std::byte* out, std::int64_t count, DType dtype,
                             DeviceQueue& queue) {
  state_->call("ncclAllReduce", [&] {
    return state_->nccl->AllReduce(in, out, static_cast<std::size_t>(count), type_of(dtype),
                                   ncclSum, state_->communicator, stream_of(queue));
  });
}

void NcclChannel::reduce_each(const std::vector<Sum>& sums, DType dtype, DeviceQueue& queue) {
  state_->call("ncclReduce", [&] {
    return grouped(
        [&](const cuda::NcclFunctions& nccl, std::size_t i) {
          const Sum& sum = sums[i];
          if (sum.count == 0) return ncclSuccess;
          return nccl.Reduce(sum.from, sum.to, static_cast<std::size_t>(sum.count), type_of(dtype),
                             ncclSum, sum.root, state_->communicator, stream_of(queue));
        },
        sums.size());
  });
}

void NcclChannel::transfer(const std::vector<Transfer>& transfers, DeviceQueue& queue) {
  state_->call("ncclSend and ncclRecv", [&] {
    return grouped(
        [&](const cuda::NcclFunctions& nccl, std::size_t i) {
          const Transfer& one = transfers[i];
          if (one.bytes == 0) return ncclSuccess;
          if (one.send != nullptr) {
            return nccl.Send(one.send, one.bytes, ncclInt8, one.peer, state_->communicator,
                             stream_of(queue));
          }
          return nccl.Recv(one.receive, one.bytes, ncclInt8, one.peer, state_->communicator,
                           stream_of(queue));
        },
        transfers.size());
  });
}

std::optional<std::string> NcclChannel::asynchronous_error() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->aborted || state_->communicator == nullptr) return std::nullopt;
  const ncclResult_t status = state_->status();
  if (status == ncclSuccess || status == ncclInProgress) return std::nullopt;
  return state_->nccl->GetErrorString(status);
}

void NcclChannel::abort() noexcept {
  const std::lock_guard lock(state_->mutex);
  if (state_->communicator == nullptr || state_->aborted) return;
  state_->aborted = true;
  state_->nccl->CommAbort(state_->communicator);
}

}  // namespace tessera::comm
