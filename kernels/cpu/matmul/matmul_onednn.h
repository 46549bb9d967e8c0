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

// True if this processor multiplies bfloat16 in hardware and oneDNN uses it. Otherwise oneDNN's own
// bfloat16 product is several times slower than widening the operands to single precision.
bool has_bfloat16_products();

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
