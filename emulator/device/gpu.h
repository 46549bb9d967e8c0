// Kernels on the host: CUDA's device language and the portable functions of
// kernels/cuda/device/gpu.h, for compilers that are not nvcc.
//
// Each thread of a block runs as it would on a GPU (emulator/scheduler); what CUDA leaves undefined
// and the emulator can see ends the process with a report. Value types, conversions and the
// run-time API's declarations are the CUDA toolkit's own headers.
#pragma once

#if !defined(TESSERA_EMULATED)
#error "kernels are compiled by nvcc, or by targets that define TESSERA_EMULATED"
#endif

#include "emulator/device/asynchronous_copy.h"
#include "emulator/device/atomics.h"
#include "emulator/device/bits.h"
#include "emulator/device/block.h"
#include "emulator/device/language.h"
#include "emulator/device/math.h"
#include "emulator/device/memory.h"
#include "emulator/device/shared_memory.h"
#include "emulator/device/tensor_core.h"
#include "emulator/device/warp.h"
