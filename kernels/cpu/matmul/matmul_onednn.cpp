// Calls into oneDNN, and the per-thread cache of its primitives.
#include "kernels/cpu/matmul/matmul_onednn.h"

#include <dnnl_debug.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/parallel.h"
#include "kernels/cpu/matmul/matmul_amx.h"
#include "kernels/cpu/matmul/matmul_scratch.h"
#include "kernels/cpu/matmul/onednn_versions.h"

namespace tessera::kernels::cpu {
namespace {

// The properties that determine a primitive's code; equal keys may share a primitive.
struct PrimitiveKey {
  std::int64_t m, n, k, lda, ldb, ldc;
  std::uint32_t alpha_bits;
  std::int32_t threads;
  std::uint8_t transpose_a, transpose_b, accumulate, bias;
  DType out_dtype;

  bool operator==(const PrimitiveKey&) const = default;
};

struct PrimitiveKeyHash {
  std::size_t operator()(const PrimitiveKey& key) const {
    std::uint64_t hash = 0;
    const auto mix = [&hash](std::uint64_t value) {
      hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
      hash ^= hash >> 29;
    };
    mix(static_cast<std::uint64_t>(key.m) << 32 ^ static_cast<std::uint64_t>(key.n));
    mix(static_cast<std::uint64_t>(key.k) << 32 ^ static_cast<std::uint64_t>(key.lda));
    mix(static_cast<std::uint64_t>(key.ldb) << 32 ^ static_cast<std::uint64_t>(key.ldc));
    mix(static_cast<std::uint64_t>(key.alpha_bits) << 32 | static_cast<std::uint32_t>(key.threads));
    mix(static_cast<std::uint64_t>(key.transpose_a) |
        static_cast<std::uint64_t>(key.transpose_b) << 8 |
        static_cast<std::uint64_t>(key.accumulate) << 16 |
        static_cast<std::uint64_t>(key.bias) << 24 |
        static_cast<std::uint64_t>(key.out_dtype) << 32);
    return hash;
  }
};

// A primitive with the memory objects of its arguments; a call only sets their addresses.
struct CachedPrimitive {
  bool fast = false;
  dnnl::matmul primitive;
  dnnl::memory a, b, c, bias, scratchpad;
  std::array<dnnl_exec_arg_t, 5> arguments{};
  int argument_count = 0;
  std::size_t scratchpad_bytes = 0;

  void add_argument(int which, const dnnl::memory& memory) {
    arguments[static_cast<std::size_t>(argument_count++)] = {which, memory.get()};
  }
};

// The state of a thread for its products. There are few primitives (a model has a few dozen
// shapes). A program that keeps changing shapes, such as one that generates text, clears the cache
// at the bound.
class ThreadPrimitives {
 public:
  static ThreadPrimitives& of_this_thread() {
    static thread_local ThreadPrimitives primitives;
    return primitives;
  }

  CachedPrimitive& find_or_create(const PrimitiveKey& key, const Matmul& product) {
    if (last_ != nullptr && key == last_key_) return *last_;
    auto entry = cache_.find(key);
    if (entry == cache_.end()) {
      if (cache_.size() >= kMostPrimitives) cache_.clear();
      entry = cache_.emplace(key, create(product)).first;
    }
    last_key_ = key;
    last_ = entry->second.get();
    return *last_;
  }

  std::byte* scratchpad(std::size_t bytes) {
    return scratchpad_.get<std::byte>(static_cast<std::int64_t>(bytes));
  }

  dnnl::stream& stream() { return stream_; }

 private:
  static constexpr std::size_t kMostPrimitives = 1024;

  std::unique_ptr<CachedPrimitive> create(const Matmul& product);

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::unordered_map<PrimitiveKey, std::unique_ptr<CachedPrimitive>, PrimitiveKeyHash> cache_;
  PrimitiveKey last_key_{};
  CachedPrimitive* last_ = nullptr;
  ScratchBuffer scratchpad_;
};

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, dnnl::memory::data_type type,
                          std::int64_t stride, bool transposed) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
  return {{rows, columns}, type, strides};
}

std::unique_ptr<CachedPrimitive> ThreadPrimitives::create(const Matmul& product) {
  using dnnl::memory;
  constexpr auto bf16 = memory::data_type::bf16;
  const auto out_type =
      product.out_dtype == DType::float32 ? memory::data_type::f32 : memory::data_type::bf16;
  const auto a = matrix(product.m, product.k, bf16, product.lda, product.transpose_a);
  const auto b = matrix(product.k, product.n, bf16, product.ldb, product.transpose_b);
  const auto c = matrix(product.m, product.n, out_type, product.ldc, false);
  const memory::desc bias({1, product.n}, bf16, memory::dims{product.n, 1});

  // alpha must scale neither the bias nor c, so it comes first among the operations on the sum.
  const bool bias_after_alpha = product.bias != nullptr && product.alpha != 1.0f;
  dnnl::post_ops operations;
  if (product.alpha != 1.0f) onednn::append_factor(operations, product.alpha);
  if (product.accumulate) operations.append_sum(1.0f);
  if (bias_after_alpha) operations.append_binary(dnnl::algorithm::binary_add, bias);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_post_ops(operations);

  auto cached = std::make_unique<CachedPrimitive>();
  try {
    const bool bias_first = product.bias != nullptr && !bias_after_alpha;
    const auto chosen =
        onednn::describe_matmul(engine_, a, b, bias_first ? &bias : nullptr, c, attributes);
    // "brg" kernels use the processor's matrix instructions; the others are several times slower.
    cached->fast = std::string_view(chosen.impl_info_str()).starts_with("brg");
    if (!cached->fast) return cached;
    cached->primitive = dnnl::matmul(chosen);
    cached->a = memory(a, engine_, nullptr);
    cached->b = memory(b, engine_, nullptr);
    cached->c = memory(c, engine_, nullptr);
    cached->add_argument(DNNL_ARG_SRC, cached->a);
    cached->add_argument(DNNL_ARG_WEIGHTS, cached->b);
    cached->add_argument(DNNL_ARG_DST, cached->c);
    if (product.bias != nullptr) {
      cached->bias = memory(bias, engine_, nullptr);
      const int position = product.accumulate ? 2 : 1;  // after alpha and the sum
      cached->add_argument(bias_after_alpha
                               ? DNNL_ARG_ATTR_MULTIPLE_POST_OP(position) | DNNL_ARG_SRC_1
                               : DNNL_ARG_BIAS,
                           cached->bias);
    }
    cached->scratchpad_bytes = chosen.scratchpad_desc().get_size();
    if (cached->scratchpad_bytes > 0) {
      cached->scratchpad = memory(chosen.scratchpad_desc(), engine_, nullptr);
      cached->add_argument(DNNL_ARG_SCRATCHPAD, cached->scratchpad);
    }
  } catch (const dnnl::error& error) {
    fail_onednn("dnnl::matmul::primitive_desc", error.status, product);
  }
  return cached;
}

// oneDNN runs on one thread inside a parallel region, and splits a primitive's work when it is
// created.
int threads_of_this_call() {
  return inside_parallel_for() ? 1 : compute_threads();
}

ProcessorModel processor_model() {
  ProcessorModel found;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return found;
  found.intel = b == signature_INTEL_ebx && c == signature_INTEL_ecx && d == signature_INTEL_edx;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
  found.family = (a >> 8 & 0xF) + (a >> 20 & 0xFF);
  found.model = (a >> 4 & 0xF) + (a >> 12 & 0xF0);
#endif
  return found;
}

dnnl_status_t set_address(const dnnl::memory& memory, const void* address) {
  return dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(address));
}

}  // namespace

void fail_onednn(const char* call, dnnl_status_t status, const Matmul& product) {
  fail(status == dnnl_out_of_memory ? ErrorCode::out_of_memory : ErrorCode::runtime,
       "oneDNN: {} failed with {} for the product [{}, {}] x [{}, {}] of {}{}{} with row strides "
       "{}, {}, "
       "{}; {}",
       call, dnnl_status2str(status), product.m, product.k, product.k, product.n,
       name_of(product.dtype), product.transpose_a ? ", a transposed" : "",
       product.transpose_b ? ", b transposed" : "", product.lda, product.ldb, product.ldc,
       status == dnnl_out_of_memory ? "use a smaller batch"
                                    : "set DNNL_VERBOSE=1 to see what oneDNN does");
}

bool onednn_uses(dnnl_cpu_isa_t instructions) {
  static const auto used = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  const auto needed = static_cast<unsigned>(instructions);
  return (used & needed) == needed;  // a set's number has the bits of the sets that it includes
}

bool has_bfloat16_products() {
  static const bool fast = onednn_uses(dnnl_cpu_isa_avx512_core_bf16) &&
                           (has_amx_products() || !has_slow_bfloat16_pairs(processor_model()));
  return fast;
}

bool has_slow_bfloat16_pairs(const ProcessorModel& processor) {
  constexpr unsigned cooper_lake = 85;  // the number of all servers before Ice Lake
  return processor.intel && (processor.family != 6 || processor.model > cooper_lake);
}

bool onednn_rounds_rows_alike() {
  return onednn_uses(dnnl_cpu_isa_avx512_core);
}

void onednn_sgemm(const Matmul& product) {
  require_pool();
  TESSERA_ONEDNN(
      dnnl_sgemm(product.transpose_a ? 'T' : 'N', product.transpose_b ? 'T' : 'N', product.m,
                 product.n, product.k, product.alpha, static_cast<const float*>(product.a),
                 product.lda, static_cast<const float*>(product.b), product.ldb,
                 product.accumulate ? 1.0f : 0.0f, static_cast<float*>(product.c), product.ldc),
      product);
}

bool onednn_bfloat16(const Matmul& product) {
  const PrimitiveKey key{product.m,
                         product.n,
                         product.k,
                         product.lda,
                         product.ldb,
                         product.ldc,
                         std::bit_cast<std::uint32_t>(product.alpha),
                         threads_of_this_call(),
                         product.transpose_a,
                         product.transpose_b,
                         product.accumulate,
                         product.bias != nullptr,
                         product.out_dtype};
  auto& thread = ThreadPrimitives::of_this_thread();
  CachedPrimitive& cached = thread.find_or_create(key, product);
  if (!cached.fast) return false;
  TESSERA_ONEDNN(set_address(cached.a, product.a), product);
  TESSERA_ONEDNN(set_address(cached.b, product.b), product);
  TESSERA_ONEDNN(set_address(cached.c, product.c), product);
  if (product.bias != nullptr) TESSERA_ONEDNN(set_address(cached.bias, product.bias), product);
  if (cached.scratchpad_bytes > 0) {
    TESSERA_ONEDNN(set_address(cached.scratchpad, thread.scratchpad(cached.scratchpad_bytes)),
                   product);
  }
  require_pool();
  TESSERA_ONEDNN(dnnl_primitive_execute(cached.primitive.get(), thread.stream().get(),
                                        cached.argument_count, cached.arguments.data()),
                 product);
  return true;
}

}  // namespace tessera::kernels::cpu
