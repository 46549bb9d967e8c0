// Calls oneDNN.
#include "bench/harness/bare_products.h"

#include <unordered_map>

#include "kernels/cpu/description.h"
#include "kernels/cpu/matmul/onednn_versions.h"

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

DType bare_dtype(DType dtype) {
  return dtype == bfloat16 && !kernels::cpu::describe().bf16_products ? float32 : dtype;
}

BareProduct bare_product(const kernels::Matmul& p, BareLayout layout) {
  using dnnl::memory;
  if (p.dtype == float32) return {[p] { run_sgemm(p); }, "sgemm"};
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
  const memory::desc any_layout({p.batch, p.k, p.n}, type, memory::format_tag::any);
  dnnl::primitive_attr attributes;
  if (p.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const auto chosen = kernels::cpu::onednn::describe_matmul(
      engine, a, layout == BareLayout::packed ? any_layout : b, nullptr, c, attributes);
  const dnnl::matmul primitive(chosen);
  const memory given(b, engine, const_cast<void*>(p.b));
  const bool copied = chosen.weights_desc() != b;
  const memory used = copied ? memory(chosen.weights_desc(), engine) : given;
  const std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, memory(a, engine, const_cast<void*>(p.a))},
      {DNNL_ARG_WEIGHTS, used},
      {DNNL_ARG_DST, memory(c, engine, p.c)}};
  if (!copied) {
    return {[primitive, arguments] { primitive.execute(stream, arguments); },
            chosen.impl_info_str()};
  }
  const dnnl::reorder pack(given, used);
  return {[pack, given, used, primitive, arguments] {
            pack.execute(stream, {{DNNL_ARG_FROM, given}, {DNNL_ARG_TO, used}});
            primitive.execute(stream, arguments);
          },
          chosen.impl_info_str()};
}

}  // namespace tessera::bench
