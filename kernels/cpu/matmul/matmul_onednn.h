// oneDNN's matrix products behind plain pointers: single precision by dnnl_sgemm, bfloat16 by
// cached matmul primitives. One product per call; matmul.cpp splits batches and chooses between
// them.
#pragma once

#include <dnnl.h>

#include <cstdint>

#include "base/error.h"
#include "kernels/matmul.h"

namespace tessera::kernels::cpu {

[[noreturn]] void fail_onednn(const char* call, dnnl_status_t status, const Matmul& product);

// True if oneDNN uses these instructions: the processor has them, and DNNL_MAX_CPU_ISA allows them.
bool onednn_uses(dnnl_cpu_isa_t instructions);

// True if this processor multiplies bfloat16 in hardware, at more than the rate of single
// precision, and oneDNN uses it. Otherwise it is faster to widen the operands to single precision:
// by 1.8 times where the instructions are slow, and several times where they are missing. The two
// ways round differently, so bf16 runs have other bits on a machine that shows AMX than on one of
// the same model that hides it.
bool has_bfloat16_products();

struct ProcessorModel {
  bool intel = false;
  unsigned family = 0;  // as CPUID numbers them, with the extended parts
  unsigned model = 0;
};

// True for a processor whose instruction for pairs of bfloat16 (VDPBF16PS) starts every second
// cycle only. Intel's do so since Sapphire Rapids, which has AMX for this work; a virtual machine
// often hides AMX. On one such core (family 6, model 207) oneDNN multiplies bfloat16 at 80 GFLOP/s
// and single precision at 140.
bool has_slow_bfloat16_pairs(const ProcessorModel& processor);

// True if dnnl_sgemm rounds a row the same for every number of rows and threads. With AVX-512 it
// does; its older kernels use different orders for different shapes.
bool onednn_rounds_rows_alike();

// c = alpha * op(a) * op(b) (+ c), all of float32; `product` gives the shape and must have no bias.
void onednn_sgemm(const Matmul& product);

// The same for bfloat16 operands, with bias and both output types, without batch. Returns false,
// and writes nothing, if oneDNN has no fast kernel for the shape.
bool onednn_bfloat16(const Matmul& product);

}  // namespace tessera::kernels::cpu

// Checks a oneDNN call: a failure names the call, its status and the product's shape.
#define TESSERA_ONEDNN(call, product)                                          \
  do {                                                                         \
    const dnnl_status_t tessera_status_ = (call);                              \
    if (tessera_status_ != dnnl_success) {                                     \
      ::tessera::kernels::cpu::fail_onednn(#call, tessera_status_, (product)); \
    }                                                                          \
  } while (false)
