// Modules and functions that are called one after the other.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/nn/module.h"

namespace tessera::nn {

// nn::Sequential(nn::Linear(3, 8), [](const Tensor& x) { return gelu(x); }, nn::Linear(8, 2))
//
// Each part takes one tensor and returns one. A module is registered under its place, a function
// only takes a place: the names ("0.weight", "2.weight") are those of torch.nn.Sequential with a
// module for each function.
class SequentialImpl : public Module {
 public:
  template <class... Parts>
  requires(sizeof...(Parts) > 0) explicit SequentialImpl(Parts... parts) {
    (append(std::move(parts)), ...);
  }
  Tensor forward(Tensor x) const {
    for (const auto& call : calls_) x = call(x);
    return x;
  }
  [[nodiscard]] std::size_t size() const { return calls_.size(); }

 private:
  template <class Part>
  void append(Part part) {
    static_assert(std::is_invocable_r_v<Tensor, const Part&, const Tensor&>,
                  "a part of a Sequential takes a Tensor and returns a Tensor");
    if constexpr (requires { part.pointer(); }) {
      register_module(std::to_string(calls_.size()), part);
    }
    calls_.emplace_back([part = std::move(part)](const Tensor& x) -> Tensor { return part(x); });
  }

  std::vector<std::function<Tensor(const Tensor&)>> calls_;
};
TESSERA_MODULE(Sequential);

}  // namespace tessera::nn
