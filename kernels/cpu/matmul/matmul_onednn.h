// oneDNN's matrix products behind plain pointers: single precision by dnnl_sgemm, bfloat16 by
// cached matmul primitives. One product a call; matmul.cpp cuts batches and chooses between them.
#pragma once

#include <dnnl.h>

#include <cstdint>

#include "base/error.h"
#include "kernels/matmul.h"

namespace tessera::kernels::cpu {

[[noreturn]] void fail_onednn(const char* call, dnnl_status_t status, const Matmul& product);

// Whether oneDNN makes use of these instructions: the processor has them, and DNNL_MAX_CPU_ISA
// allows them.
bool onednn_uses(dnnl_cpu_isa_t instructions);

// Whether this processor multiplies bfloat16 in hardware and oneDNN makes use of it. Without,
// oneDNN's own bfloat16 product is several times slower than widening the operands to single
// precision.
bool has_bfloat16_products();

// Whether dnnl_sgemm rounds a row the same whatever the number of rows and threads. With AVX-512 it
// does; its older kernels take other orders for other shapes.
bool onednn_rounds_rows_alike();

// c = alpha * op(a) * op(b) (+ c), all of float32; `product` gives the shape and may carry no bias.
void onednn_sgemm(const Matmul& product);

// The same of bfloat16 operands with bias and both output types, batch excepted. False when oneDNN
// has no fast kernel for the shape, and then nothing is written.
bool onednn_bfloat16(const Matmul& product);

}  // namespace tessera::kernels::cpu

// A oneDNN call that must succeed: a failure names the call, its status and the product's shape.
#define TESSERA_ONEDNN(call, product)                                          \
  do {                                                                         \
    const dnnl_status_t tessera_status_ = (call);                              \
    if (tessera_status_ != dnnl_success) {                                     \
      ::tessera::kernels::cpu::fail_onednn(#call, tessera_status_, (product)); \
    }                                                                          \
  } while (false)
