// The loop of an element-wise optimizer on the CPU: a class derived from Optimizer calls it in its
// update(), with one step as a function of an element's numbers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/low_precision.h"
#include "base/parallel.h"
#include "engine/optim/optimizer.h"

namespace tessera::detail {

// Calls body(first, last, decays) for parts of [first, last) inside or outside the decay's ranges.
template <class Body>
void for_decay_parts(const optim::Update& u, std::int64_t first, std::int64_t last,
                     const Body& body) {
  std::size_t passed = 0;
  while (first < last) {
    while (passed < u.decay_edges.size() && u.decay_edges[passed] <= first) ++passed;
    const bool any_left = passed < u.decay_edges.size();
    const std::int64_t end = any_left ? std::min(last, u.decay_edges[passed]) : last;
    body(first, end, passed % 2 == 1);
    first = end;
  }
}

template <class T, class Gradient, class Step, std::size_t... i>
void update_typed(const optim::Update& u, double weight_decay, const Step& step,
                  std::index_sequence<i...> /*states*/) {
  T* const parameter = reinterpret_cast<T*>(u.parameter);
  const auto* const gradient = reinterpret_cast<const Gradient*>(u.gradient);
  const std::array<T*, sizeof...(i)> states = {reinterpret_cast<T*>(u.states[i])...};
  const T scale = static_cast<T>(u.gradient_scale);
  const auto widened = [](Gradient value) {
    if constexpr (std::is_same_v<Gradient, double>) {
      return value;
    } else {
      return static_cast<T>(to_float(value));
    }
  };
  parallel_for(0, u.count, std::int64_t{1} << 14, [&](std::int64_t begin, std::int64_t end) {
    for_decay_parts(u, begin, end, [&](std::int64_t first, std::int64_t last, bool decays) {
      const T decay = decays ? static_cast<T>(u.decay_or(weight_decay)) : T{0};
      for (std::int64_t n = first; n < last; ++n) {
        step(parameter[n], static_cast<T>(widened(gradient[n]) * scale), decay, states[i][n]...);
      }
    });
  });
}

template <std::size_t states, class T, class Step>
void update_gradients(const optim::Update& u, double weight_decay, const Step& step) {
  constexpr auto each = std::make_index_sequence<states>();
  switch (u.gradient_dtype) {
    case DType::float32:
      return update_typed<T, float>(u, weight_decay, step, each);
    case DType::bfloat16:
      return update_typed<T, BFloat16>(u, weight_decay, step, each);
    case DType::float16:
      return update_typed<T, Float16>(u, weight_decay, step, each);
    default:
      break;
  }
  if constexpr (std::is_same_v<T, double>) {
    if (u.gradient_dtype == DType::float64) {
      return update_typed<T, double>(u, weight_decay, step, each);
    }
  }
  misuse("update_elements: gradients of {} for parameters of {}", name_of(u.gradient_dtype),
         name_of(u.dtype));
}

}  // namespace tessera::detail

namespace tessera::optim {

// Calls step(parameter, gradient, weight_decay, state...) for every element of `u`, with a state
// for each of the optimizer's state_names(). Numbers are of T: float, or double for float64
// parameters.
//   T& parameter, T&... state: to be changed in place. State begins as zeros.
//   T gradient: with the factor of clipping.
//   T weight_decay: the argument, or the value of the parameter's group; 0 for parameters that do
//   not decay. Decoupled decay is: parameter -= rate * weight_decay * parameter.
// Elements come in any order and on several threads, so `step` reads and writes these numbers alone
// (and values that are the same for all of them, as the rate: learning_rate() * u.lr_scale). Then
// the bits are the same under every strategy, on any number of threads and with state in files.
// Calls nothing in a plan, where there are no numbers. Throws Error(configuration) for memory on a
// GPU: with OffloadOptions::optimizer = Placement::host the CPU updates the parameters of a GPU.
template <std::size_t states, class Step>
void update_elements(const Update& u, double weight_decay, const Step& step) {
  if (u.device.is_meta() || u.device.is_planned()) return;
  TESSERA_CHECK(u.device.type == DeviceType::cpu, ErrorCode::configuration,
                "update_elements works on the CPU, and these parameters are on {}: place the "
                "optimizer on the host (OffloadOptions::optimizer), or write a kernel",
                u.device.to_string());
  TESSERA_REQUIRE(u.states.size() == states,
                  "update_elements<{}>: the optimizer's state_names() has {} names", states,
                  u.states.size());
  TESSERA_REQUIRE(!u.has_formats,
                  "update_elements: a state of this optimizer has a StateFormat; states of the "
                  "parameter's dtype and shape are needed");
  if (u.dtype == DType::float64) {
    detail::update_gradients<states, double>(u, weight_decay, step);
  } else {
    detail::update_gradients<states, float>(u, weight_decay, step);
  }
}

}  // namespace tessera::optim
