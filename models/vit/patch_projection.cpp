// Patches as rows of a product.
#include "models/vit/patch_projection.h"

#include "base/error.h"
#include "engine/tensor_ops.h"

namespace tessera::models {

PatchProjectionImpl::PatchProjectionImpl(const Options& options) : options_(options) {
  const auto& o = options_;
  TESSERA_REQUIRE(o.patch > 0 && o.image % o.patch == 0,
                  "images of {} rows do not consist of patches of {}", o.image, o.patch);
  register_parameter("weight", nn::make_parameter({o.width, o.channels, o.patch, o.patch},
                                                  nn::normal(0, o.deviation)));
  if (o.bias) register_parameter("bias", nn::make_parameter({o.width}, nn::constant(0)));
}

Tensor PatchProjectionImpl::forward(const Tensor& images) const {
  const auto& o = options_;
  TESSERA_REQUIRE(images.dimensions() == 4 && images.size(1) == o.channels &&
                      images.size(2) == o.image && images.size(3) == o.image,
                  "the model takes images [samples, {}, {}, {}], given {}", o.channels, o.image,
                  o.image, images.shape().to_string());
  const std::int64_t samples = images.size(0), side = o.image / o.patch;
  const std::int64_t elements = o.channels * o.patch * o.patch;
  const Tensor grid = reshape(images, {samples, o.channels, side, o.patch, side, o.patch});
  const Tensor rows = reshape(permute(grid, {0, 2, 4, 1, 3, 5}), {samples, side * side, elements});
  return linear(rows, reshape(parameter("weight"), {o.width, elements}),
                o.bias ? parameter("bias") : Tensor{});
}

Tensor with_first_and_positions(const Tensor& rows, const Tensor& first, const Tensor& positions) {
  const std::int64_t samples = rows.size(0), width = rows.size(2);
  const Tensor repeated = expand(reshape(first, {1, 1, width}), {samples, 1, width});
  return concatenate({repeated, rows}, 1) + reshape(positions, {rows.size(1) + 1, width});
}

}  // namespace tessera::models
