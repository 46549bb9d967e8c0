// Replaces NCCL for threads of one process, over the emulated CUDA runtime: its functions, as a
// table that takes the place of the library's.
#pragma once

#include "comm/nccl/nccl_library.h"

namespace tessera::emulator {

// Non-blocking, as the engine requires: a call whose peers have not called yet leaves the
// communicator in progress, and the last peer puts the work into the streams of all ranks. Sums add
// the ranks in order and are rounded to their dtype at each step, as NCCL's rings do. If
// collectives differ between the ranks, all ranks get an asynchronous error.
const cuda::NcclFunctions& nccl_functions();

}  // namespace tessera::emulator
