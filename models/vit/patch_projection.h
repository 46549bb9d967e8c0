// The first layer of a vision transformer: an image's patches, each projected to a row.
#pragma once

#include <cstdint>

#include "engine/nn/module.h"
#include "engine/ops.h"

namespace tessera::models {

// Takes square images of square patches. The parameters are those of the convolution that
// transformers has here: weight [width, channels, patch, patch] and, if there is one, bias [width].
// Its windows do not overlap, so it is one product of the patches, whose result has the layout of
// rows at once.
class PatchProjectionImpl : public nn::Module {
 public:
  struct Options {
    std::int64_t channels = 3, image = 224, patch = 16, width = 768;
    bool bias = true;
    double deviation = 0.02;  // of the initial weights
  };
  explicit PatchProjectionImpl(const Options& options);
  // [samples, channels, image, image] of any floating dtype -> [samples, patches, width].
  Tensor forward(const Tensor& images) const;

 private:
  Options options_;
};
TESSERA_MODULE(PatchProjection);

// rows [samples, n, width] behind the row `first`, of `width` elements, plus positions [n + 1,
// width], which may have more dimensions of size 1.
Tensor with_first_and_positions(const Tensor& rows, const Tensor& first, const Tensor& positions);

}  // namespace tessera::models
