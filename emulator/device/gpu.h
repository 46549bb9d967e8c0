// Kernels on the host: CUDA's device language and the portable functions of
// kernels/cuda/device/gpu.h, for compilers other than nvcc.
// Each thread of a block runs as it would on a GPU (emulator/scheduler). Where the emulator detects
// behaviour that CUDA leaves undefined, it ends the process with a report. Value types, conversions
// and the declarations of the runtime API come from the CUDA toolkit's headers.
#pragma once

#if !defined(TESSERA_EMULATED)
#error "kernels are compiled by nvcc, or by targets that define TESSERA_EMULATED"
#endif

#include "emulator/device/asynchronous_copy.h"
#include "emulator/device/atomics.h"
#include "emulator/device/block.h"
#include "emulator/device/intrinsics.h"
#include "emulator/device/language.h"
#include "emulator/device/shared_memory.h"
#include "emulator/device/tensor_core.h"
#include "emulator/device/warp.h"
