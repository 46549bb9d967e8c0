// NCCL's functions, from the library that is on the machine.
#pragma once

#include <nccl.h>

#include <string>

namespace tessera::cuda {

#define TESSERA_NCCL_FUNCTIONS(X) \
  X(GetVersion)                   \
  X(GetUniqueId)                  \
  X(GetErrorString)               \
  X(CommInitRankConfig)           \
  X(CommSplit)                    \
  X(CommFinalize)                 \
  X(CommDestroy)                  \
  X(CommAbort)                    \
  X(CommGetAsyncError)            \
  X(AllGather)                    \
  X(ReduceScatter)                \
  X(Reduce)                       \
  X(AllReduce)                    \
  X(Send)                         \
  X(Recv)                         \
  X(GroupStart)                   \
  X(GroupEnd)

// Called like NCCL's own: functions.AllGather is ncclAllGather.
struct NcclFunctions {
#define TESSERA_NCCL_POINTER(name) decltype(&nccl##name) name = nullptr;
  TESSERA_NCCL_FUNCTIONS(TESSERA_NCCL_POINTER)
#undef TESSERA_NCCL_POINTER
};

struct NcclLibrary {
  bool loaded = false;
  NcclFunctions functions;
  std::string text;  // "2.28.9 (its file)", or why it cannot be loaded
};

// Loaded at the first call (libnccl.so.2), once for the process.
const NcclLibrary& nccl_library();

}  // namespace tessera::cuda
