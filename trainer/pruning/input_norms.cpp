// Hooks that add squares on the device, and the sum over ranks on the host.
#include "trainer/pruning/input_norms.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/hook_list.h"
#include "engine/tensor_ops.h"

namespace tessera {
namespace {

// Only so many elements are widened at a time.
constexpr std::int64_t widened_elements = std::int64_t{1} << 20;

// Adds the squares of the columns of x [..., width] to `sums` [width], in fp64.
void add_squares(const Tensor& x, Tensor& sums) {
  const std::int64_t width = x.size(x.dimensions() - 1);
  const std::int64_t rows = x.elements() / width;
  const std::int64_t most = std::max<std::int64_t>(1, widened_elements / width);
  const Tensor all = reshape(x.detach(), {rows, width});
  for (std::int64_t first = 0; first < rows; first += most) {
    const Tensor part = cast(narrow(all, 0, first, std::min(most, rows - first)), float64);
    const Tensor squares = sum(square(part), {0});
    sums = sums.defined() ? sums + squares : squares;
  }
}

// Hooks of its lifetime.
class InputWatch {
 public:
  InputWatch(std::span<const WatchedLayer> layers, std::vector<Tensor>& sums) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      hooks_.push_back(layers[i].layer->register_forward_pre_hook(
          [&sum = sums[i]](nn::Module&, std::span<const Tensor> inputs) {
            add_squares(inputs.front(), sum);
          }));
    }
  }
  ~InputWatch() {
    for (HookHandle& hook : hooks_) hook.remove();
  }
  InputWatch(const InputWatch&) = delete;
  InputWatch& operator=(const InputWatch&) = delete;

 private:
  std::vector<HookHandle> hooks_;
};

// The sums of one layer after the other.
std::vector<double> sums_on_host(std::span<const WatchedLayer> layers,
                                 const std::vector<Tensor>& sums) {
  std::vector<double> all;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    TESSERA_CHECK(sums[i].defined(), ErrorCode::configuration,
                  "pruning: {} is computed as a part of the module around it, so the norms of its "
                  "inputs are not known; prune it by magnitude, or leave it out",
                  layers[i].name);
    const Tensor on_host = sums[i].to(Device::cpu());
    const auto* values = on_host.data_as<double>();
    all.insert(all.end(), values, values + on_host.elements());
  }
  return all;
}

std::vector<double> sums_of_ranks(const std::vector<double>& own, const RankExchange& exchange) {
  std::string bytes(own.size() * sizeof(double), '\0');
  if (!own.empty()) std::memcpy(bytes.data(), own.data(), bytes.size());
  std::vector<double> all(own.size()), part(own.size());
  for (const std::string& text : exchange(bytes)) {
    TESSERA_REQUIRE(text.size() == bytes.size(), "ranks prune different layers");
    if (!part.empty()) std::memcpy(part.data(), text.data(), text.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] += part[i];
  }
  return all;
}

}  // namespace

std::vector<std::vector<float>> input_norms(std::span<const WatchedLayer> layers,
                                            const std::function<void()>& forwards,
                                            const RankExchange& exchange) {
  const NoGradGuard no_grad;
  std::vector<Tensor> sums(layers.size());
  {
    const InputWatch watch(layers, sums);
    forwards();
  }
  const std::vector<double> all = sums_of_ranks(sums_on_host(layers, sums), exchange);
  std::vector<std::vector<float>> norms;
  auto next = all.begin();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    norms.emplace_back();
    for (std::int64_t column = 0; column < sums[i].elements(); ++column) {
      norms.back().push_back(static_cast<float>(std::sqrt(*next++)));
    }
    TESSERA_CHECK(std::all_of(norms.back().begin(), norms.back().end(),
                              [](float norm) { return std::isfinite(norm); }),
                  ErrorCode::numeric, "pruning: the inputs of {} have a norm that is not finite",
                  layers[i].name);
  }
  return norms;
}

}  // namespace tessera
