// Recomputation: a function keeps only its inputs for backward, without its intermediate values,
// and runs again when backward reaches it. This saves memory and costs at most one more forward.
//
//   Tensor y = recompute([&](const Tensor& x) { return mlp(gelu(norm(x))); }, x);
#pragma once

#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/op_list.h"
#include "engine/tensor.h"

namespace tessera {

class ActivationOffload;

namespace autograd {
class Node;
}

// A recomputed function keeps the results of these ops besides its inputs; the second run takes
// them instead of computing them.
struct RecomputeOptions {
  OpSet keep = {};
  // Moves inputs on its GPU to the host between the two runs; null: they stay.
  std::shared_ptr<ActivationOffload> offload = nullptr;
};

// Ops whose results can be kept.
inline constexpr OpSet keepable_ops = {Op::attention, Op::packed_attention, Op::sequence_attention,
                                       Op::linear, Op::matmul};
// The ops that save the most computation per kept byte. A kept element of attention's output saves
// 2 x length multiplications and additions (4 x length without causal mask), and memory traffic at
// attention's rate. A kept element of a product's output saves 2 x its depth. For GPT-2 a layer of
// width C keeps 10 C elements per token without recomputation, C with it, 2 C with attention's
// output.
inline constexpr OpSet ops_worth_keeping = {Op::attention, Op::packed_attention,
                                            Op::sequence_attention};

namespace detail {

// True if there is something to run again: ops record nodes, and no enclosing function runs again.
bool recompute_applies();

// The first run of a function, during its lifetime: its ops save nothing for backward.
class FirstRun {
 public:
  explicit FirstRun(const RecomputeOptions& options);
  ~FirstRun();
  FirstRun(const FirstRun&) = delete;
  FirstRun& operator=(const FirstRun&) = delete;
  // Call it when the function has returned. Each backward that reaches the function calls `again`;
  // `last` tells whether it is the last one.
  void finish(std::function<void(bool last)> again);

 private:
  struct Scopes;
  std::shared_ptr<autograd::Node> node_;
  std::unique_ptr<Scopes> scopes_;
};

// Passes the inputs to options.offload. Returns the function that brings them back; empty: they
// stay.
std::function<void()> send_away(const RecomputeOptions& options,
                                const std::vector<Tensor*>& inputs);

template <class F, class... Inputs>
std::vector<Tensor*> tensors_in(std::tuple<F, Inputs...>& kept) {
  std::vector<Tensor*> tensors;
  const auto add = [&]<class Input>(Input& input) {
    if constexpr (std::is_same_v<Input, Tensor>) tensors.push_back(&input);
  };
  std::apply([&](F&, Inputs&... inputs) { (add(inputs), ...); }, kept);
  return tensors;
}

// Passes a kept input as it was given the first time: an input that was moved in is moved in again.
template <class Given, class Kept>
decltype(auto) as_given(Kept& kept) {
  if constexpr (std::is_lvalue_reference_v<Given>) {
    using Plain = std::remove_reference_t<Given>;
    if constexpr (std::is_const_v<Plain>) {
      return std::as_const(kept);
    } else {
      return (kept);
    }
  } else {
    return std::move(kept);
  }
}

}  // namespace detail

// Calls fn(inputs...). Copies of fn and of the inputs are kept until backward, or until the graph
// is dropped. Gradients have the same bits as without recomputation, for inputs and results of any
// type, parameters and other tensors that fn refers to, and several results.
//
// The second run starts with the generator state and default device of the first one and must do
// the same work. Other ops, other tensors or other random numbers (train() or eval() was called
// between) are a std::logic_error, and so is a tensor that the result depends on (an input, a
// parameter, a buffer, a capture) and that is written between the two runs, or by fn itself after
// it has read it; values that fn reads on the host are not followed. Other side effects of fn
// happen twice; in the second run, values that its backward does not read are undefined. One
// backward reaches the function: a second one is refused, unless the first kept its graph
// (retain_graph); then fn runs again for each.
//
// A nested function is recomputed when the second run of the outer one reaches it. Without
// gradients this is a plain call.
template <class F, class... Inputs>
auto recompute(const RecomputeOptions& options, F fn, Inputs&&... inputs)
    -> std::decay_t<std::invoke_result_t<F&, Inputs...>> {
  static_assert((std::is_constructible_v<std::decay_t<Inputs>, Inputs&> && ...),
                "an input of a recomputed function is copied, to be there in backward");
  if (!detail::recompute_applies()) return std::invoke(fn, std::forward<Inputs>(inputs)...);
  // Copied before the first run, which may change its inputs.
  auto kept = std::make_shared<std::tuple<F, std::decay_t<Inputs>...>>(fn, inputs...);
  std::function<void()> bring_back = detail::send_away(options, detail::tensors_in(*kept));
  detail::FirstRun first(options);
  auto again = [kept = std::move(kept), bring_back = std::move(bring_back)](bool last) {
    if (bring_back) bring_back();
    const auto run = [](F& function, std::decay_t<Inputs>&... values) {
      (void)std::invoke(function, detail::as_given<Inputs>(values)...);
    };
    if (last) {
      std::apply(run, *kept);
    } else {  // which may use up its inputs
      auto copy = *kept;
      std::apply(run, copy);
    }
  };
  if constexpr (std::is_void_v<std::invoke_result_t<F&, Inputs...>>) {
    std::invoke(fn, std::forward<Inputs>(inputs)...);
    first.finish(std::move(again));
  } else {
    auto result = std::invoke(fn, std::forward<Inputs>(inputs)...);
    first.finish(std::move(again));
    return result;
  }
}

template <class F, class... Inputs>
requires(!std::is_same_v<std::decay_t<F>, RecomputeOptions>) auto recompute(F fn,
                                                                            Inputs&&... inputs) {
  return recompute(RecomputeOptions{}, std::move(fn), std::forward<Inputs>(inputs)...);
}

}  // namespace tessera
