// NCCL's functions, implemented by cliques.
#include "emulator/nccl/nccl.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>

#include "emulator/nccl/clique.h"
#include "emulator/nccl/kernels.h"

namespace tessera::emulator {
namespace {

Membership* membership_of(ncclComm_t communicator) {
  return reinterpret_cast<Membership*>(communicator);
}

// Calls between ncclGroupStart and ncclGroupEnd wait for the end.
struct OpenGroup {
  int depth = 0;
  std::vector<std::function<void()>> calls;
  std::vector<Membership*> members;
};
thread_local OpenGroup open_group;

// The clique and this rank in it; null until a split has brought all ranks together.
std::pair<std::shared_ptr<Clique>, int> place_of(Membership* membership) {
  const std::lock_guard lock(membership->mutex);
  return {membership->clique, membership->rank};
}

ncclResult_t status_of(Membership* membership) {
  {
    const std::lock_guard lock(membership->mutex);
    if (!membership->clique) return ncclInProgress;
  }
  const auto [clique, rank] = place_of(membership);
  return clique->status(rank);
}

ncclResult_t submit(ncclComm_t communicator, std::function<void()> call) {
  Membership* membership = membership_of(communicator);
  if (!place_of(membership).first) return ncclInvalidUsage;
  if (open_group.depth > 0) {
    open_group.calls.push_back(std::move(call));
    open_group.members.push_back(membership);
    return ncclSuccess;
  }
  call();
  return status_of(membership);
}

cudaEvent_t event_now(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  (void)cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  (void)cudaEventRecord(event, stream);
  return event;
}

ncclResult_t collective(ncclComm_t communicator, CollectiveCall call) {
  if (call.kind != CollectiveKind::all_gather && size_of(call.type) == 0)
    return ncclInvalidArgument;
  return submit(communicator, [communicator, call]() mutable {
    const auto [clique, rank] = place_of(membership_of(communicator));
    if (!clique) return;
    call.ready = event_now(call.stream);
    clique->collective(rank, call);
  });
}

ncclResult_t get_version(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  static std::atomic<int> count{0};
  std::memset(id->internal, 0, sizeof(id->internal));
  std::snprintf(id->internal, sizeof(id->internal), "emulated %d", ++count);
  return ncclSuccess;
}

const char* get_error_string(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInProgress:
      return "in progress";
    case ncclInvalidArgument:
      return "the ranks' calls differ";
    case ncclInvalidUsage:
      return "invalid usage";
    default:
      return "aborted";
  }
}

ncclResult_t init_rank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                       ncclConfig_t* config) {
  if (config->blocking != 0 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  auto membership = std::make_unique<Membership>();
  membership->clique = clique_of_id(id.internal, ranks);
  membership->rank = rank;
  membership->clique->join();
  *communicator = reinterpret_cast<ncclComm_t>(membership.release());  // ncclCommDestroy frees it
  return ncclInProgress;
}

ncclResult_t comm_split(ncclComm_t parent, int color, int key, ncclComm_t* child, ncclConfig_t*) {
  Membership* membership = membership_of(parent);
  const auto [clique, rank] = place_of(membership);
  if (!clique || membership->child) return ncclInvalidUsage;
  *child = nullptr;
  membership->child_address = child;
  membership->child = std::make_unique<Membership>();
  clique->split(rank, color, key, membership->child.get());
  return ncclSuccess;  // NCCL reports that the call is accepted, not that it is done
}

// Gives a split's child to the caller; false while other ranks have not split.
bool hand_over(Membership* parent) {
  if (!parent->child) return true;
  if (!place_of(parent->child.get()).first) return false;
  *parent->child_address = reinterpret_cast<ncclComm_t>(parent->child.release());
  return true;
}

ncclResult_t end_membership(ncclComm_t communicator) {
  const std::unique_ptr<Membership> membership(membership_of(communicator));
  if (const auto [clique, rank] = place_of(membership.get()); clique) clique->leave(rank);
  return ncclSuccess;
}

ncclResult_t finalize(ncclComm_t) {
  return ncclSuccess;
}

ncclResult_t abort_communicator(ncclComm_t communicator) {
  return end_membership(communicator);
}

ncclResult_t get_async_error(ncclComm_t communicator, ncclResult_t* error) {
  if (communicator == nullptr) return ncclInvalidArgument;
  Membership* membership = membership_of(communicator);
  *error = status_of(membership);
  if (*error == ncclSuccess && !hand_over(membership)) *error = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t all_gather(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclComm_t communicator, cudaStream_t stream) {
  return collective(communicator, {CollectiveKind::all_gather, send, receive, count * size_of(type),
                                   ncclInt8, 0, stream, nullptr});
}

ncclResult_t reduce_scatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                            ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  if (operation != ncclSum) return ncclInvalidArgument;
  return collective(communicator, {CollectiveKind::reduce_scatter, send, receive, count, type, 0,
                                   stream, nullptr});
}

ncclResult_t reduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                    ncclRedOp_t operation, int root, ncclComm_t communicator, cudaStream_t stream) {
  if (operation != ncclSum) return ncclInvalidArgument;
  return collective(communicator,
                    {CollectiveKind::reduce, send, receive, count, type, root, stream, nullptr});
}

ncclResult_t all_reduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  if (operation != ncclSum) return ncclInvalidArgument;
  return collective(communicator,
                    {CollectiveKind::all_reduce, send, receive, count, type, 0, stream, nullptr});
}

ncclResult_t send(const void* buffer, size_t count, ncclDataType_t type, int peer,
                  ncclComm_t communicator, cudaStream_t stream) {
  return submit(communicator, [=] {
    const auto [clique, rank] = place_of(membership_of(communicator));
    if (!clique) return;
    clique->send(rank, peer, {buffer, nullptr, count * size_of(type), stream, event_now(stream)});
  });
}

ncclResult_t receive(void* buffer, size_t count, ncclDataType_t type, int peer,
                     ncclComm_t communicator, cudaStream_t stream) {
  return submit(communicator, [=] {
    const auto [clique, rank] = place_of(membership_of(communicator));
    if (!clique) return;
    clique->receive(rank, peer,
                    {nullptr, buffer, count * size_of(type), stream, event_now(stream)});
  });
}

ncclResult_t group_start() {
  ++open_group.depth;
  return ncclSuccess;
}

ncclResult_t group_end() {
  if (open_group.depth == 0) return ncclInvalidUsage;
  if (--open_group.depth > 0) return ncclSuccess;
  const OpenGroup group = std::exchange(open_group, {});
  for (const auto& call : group.calls) call();
  for (Membership* membership : group.members) {
    if (const ncclResult_t status = status_of(membership); status != ncclSuccess) return status;
  }
  return ncclSuccess;
}

}  // namespace

const cuda::NcclFunctions& nccl_functions() {
  static constexpr cuda::NcclFunctions functions{.GetVersion = get_version,
                                                 .GetUniqueId = get_unique_id,
                                                 .GetErrorString = get_error_string,
                                                 .CommInitRankConfig = init_rank,
                                                 .CommSplit = comm_split,
                                                 .CommFinalize = finalize,
                                                 .CommDestroy = end_membership,
                                                 .CommAbort = abort_communicator,
                                                 .CommGetAsyncError = get_async_error,
                                                 .AllGather = all_gather,
                                                 .ReduceScatter = reduce_scatter,
                                                 .Reduce = reduce,
                                                 .AllReduce = all_reduce,
                                                 .Send = send,
                                                 .Recv = receive,
                                                 .GroupStart = group_start,
                                                 .GroupEnd = group_end};
  return functions;
}

}  // namespace tessera::emulator
