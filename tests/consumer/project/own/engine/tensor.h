// The consumer's own idea of a tensor, under a path that Tessera's sources have as well.
#pragma once

namespace consumer {

struct Tensor {
  double tension = 0.0;
};

}  // namespace consumer
