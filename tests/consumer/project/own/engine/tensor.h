// The consumer's own tensor header, under a path that Tessera's sources also have.
#pragma once

namespace consumer {

struct Tensor {
  double tension = 0.0;
};

}  // namespace consumer
