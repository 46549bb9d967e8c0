// A stand-in for NCCL among threads of one process, over the emulated CUDA runtime: its functions,
// as a table that takes the place of the library's.
#pragma once

#include "comm/nccl/nccl_library.h"

namespace tessera::emulator {

// Non-blocking as the engine asks for: a call whose peers have not called yet leaves the
// communicator in progress, and the last of them puts the work into everybody's streams. Sums go
// through the ranks in order and are rounded to their dtype at each step, as NCCL's rings do.
// Collectives that differ between the ranks are an asynchronous error of them all.
const cuda::NcclFunctions& nccl_functions();

}  // namespace tessera::emulator
