// Attention on a GPU: the choice of the implementation.
#include "kernels/cuda/cudnn/attention_way.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "kernels/cuda/device/registry.h"

namespace tessera::kernels::cuda {
namespace {

void check_way(AttentionWay way, const CudnnLibrary& library) {
  TESSERA_CHECK(way != AttentionWay::cudnn || library.functions != nullptr,
                ErrorCode::configuration,
                "TESSERA_CUDA_ATTENTION is cudnn, but cuDNN is not available: {}; install it, put "
                "its folder on LD_LIBRARY_PATH, or set TESSERA_CUDA_ATTENTION=own",
                library.problem);
}

const CudnnLibrary& library_for(AttentionWay way) {
  static const CudnnLibrary none;
  return way == AttentionWay::own ? none : cudnn_library();
}

}  // namespace

AttentionWay attention_way_of(const char* text) {
  const std::string_view way = text != nullptr ? text : "";
  if (way.empty() || way == "auto") return AttentionWay::automatic;
  if (way == "own") return AttentionWay::own;
  if (way == "cudnn") return AttentionWay::cudnn;
  fail(ErrorCode::configuration, "TESSERA_CUDA_ATTENTION is \"{}\"; it may be auto, own or cudnn",
       way);
}

AttentionWay attention_way() {
  static const AttentionWay way = attention_way_of(std::getenv("TESSERA_CUDA_ATTENTION"));
  return way;
}

std::string describe_attention(AttentionWay way, const CudnnLibrary& library) {
  if (way == AttentionWay::own) return "our own kernels (TESSERA_CUDA_ATTENTION=own)";
  if (library.functions != nullptr) return library.name;
  return fmt::format("our own kernels (no cuDNN: {})", library.problem);
}

void load_attention() {
  (void)library_for(attention_way());
}

void attention_forward_by(AttentionWay way, const AttentionForward& arguments, Context& context,
                          const CudnnLibrary& library) {
  check_attention(arguments.shape, "attention_forward");
  check_way(way, library);
  const bool try_cudnn = way != AttentionWay::own && library.functions != nullptr;
  if (try_cudnn &&
      attention_forward_cudnn(arguments, context, library, way == AttentionWay::cudnn)) {
    ++context.attention.library;
    return;
  }
  attention_forward_own(arguments, context);
  ++context.attention.own;
}

void attention_backward_by(AttentionWay way, const AttentionBackward& arguments, Context& context,
                           const CudnnLibrary& library) {
  constexpr const char* name = "attention_backward";
  check_attention(arguments.shape, name);
  check_way(way, library);
  TESSERA_REQUIRE(arguments.log_sum_exp != nullptr,
                  "{}: the forward's log_sum_exp is needed (heads without one: {})", name,
                  arguments.shape.heads);
  const bool try_cudnn = way != AttentionWay::own && library.functions != nullptr;
  if (try_cudnn &&
      attention_backward_cudnn(arguments, context, library, way == AttentionWay::cudnn)) {
    ++context.attention.library;
    return;
  }
  attention_backward_own(arguments, context);
  ++context.attention.own;
}

void attention_forward(const AttentionForward& arguments, Queue queue) {
  const AttentionWay way = attention_way();
  attention_forward_by(way, arguments, context_of(queue), library_for(way));
}

void attention_backward(const AttentionBackward& arguments, Queue queue) {
  const AttentionWay way = attention_way();
  attention_backward_by(way, arguments, context_of(queue), library_for(way));
}

}  // namespace tessera::kernels::cuda
