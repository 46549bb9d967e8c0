// oneDNN calls.
#include "bench/bare_products.h"

#include <unordered_map>

#include "kernels/cpu/onednn_versions.h"

namespace tessera::bench {
namespace {

void run_sgemm(const kernels::Matmul& p) {
  for (std::int64_t i = 0; i < p.batch; ++i) {
    dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f,
               static_cast<const float*>(p.a) + i * p.stride_a, p.lda,
               static_cast<const float*>(p.b) + i * p.stride_b, p.ldb, p.accumulate ? 1.0f : 0.0f,
               static_cast<float*>(p.c) + i * p.stride_c, p.ldc);
  }
}

}  // namespace

bool has_bare_products(DType dtype) {
  using dnnl::memory;
  if (dtype == float32) return true;
  const memory::desc matrix({1, 8, 8}, memory::data_type::bf16, memory::dims{64, 8, 1});
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  constexpr bool may_be_empty = true;
  return static_cast<bool>(kernels::cpu::onednn::describe_matmul(engine, matrix, matrix, nullptr,
                                                                 matrix, {}, may_be_empty));
}

std::function<void()> bare_product(const kernels::Matmul& p) {
  using dnnl::memory;
  if (p.dtype == float32) return [p] { run_sgemm(p); };
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  static dnnl::stream stream(engine);
  const auto type = memory::data_type::bf16;
  const auto out = p.out_dtype == float32 ? memory::data_type::f32 : type;
  const memory::desc a(
      {p.batch, p.m, p.k}, type,
      p.transpose_a ? memory::dims{p.stride_a, 1, p.lda} : memory::dims{p.stride_a, p.lda, 1});
  const memory::desc b(
      {p.batch, p.k, p.n}, type,
      p.transpose_b ? memory::dims{p.stride_b, 1, p.ldb} : memory::dims{p.stride_b, p.ldb, 1});
  const memory::desc c({p.batch, p.m, p.n}, out, memory::dims{p.stride_c, p.ldc, 1});
  dnnl::primitive_attr attributes;
  if (p.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const dnnl::matmul primitive(
      kernels::cpu::onednn::describe_matmul(engine, a, b, nullptr, c, attributes));
  const std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, memory(a, engine, const_cast<void*>(p.a))},
      {DNNL_ARG_WEIGHTS, memory(b, engine, const_cast<void*>(p.b))},
      {DNNL_ARG_DST, memory(c, engine, p.c)}};
  return [primitive, arguments] { primitive.execute(stream, arguments); };
}

}  // namespace tessera::bench
