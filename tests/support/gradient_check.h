// Gradient checks: compare the tape's gradients with central differences in fp64.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "engine/op_list.h"
#include "engine/tensor.h"

namespace tessera::testing {

// An fp64 leaf on the default device that requires a gradient. A fixed sequence with the number
// `seed` spreads its values over [low, high].
Tensor leaf(const Shape& shape, unsigned seed, double low = -1.0, double high = 1.0);
// The same without a gradient.
Tensor values(const Shape& shape, unsigned seed, double low = -1.0, double high = 1.0);
// A number that depends on every element of x with a weight of its own, so that errors do not
// cancel in a sum.
Tensor weighted_sum(const Tensor& x, unsigned seed = 99);

struct CheckOptions {
  double step = 1e-5;
  double tolerance = 2e-7;       // of |tape - difference| over max(1, the largest difference)
  std::size_t max_elements = 0;  // of each leaf, evenly spread; 0: all
};

// `function` computes a scalar from the leaves, the same value in each call. Fails the current test
// for every leaf whose gradient disagrees, does not exist, or does not double when a second
// backward accumulates onto it.
void check_gradients(const std::function<Tensor()>& function, const std::vector<Tensor>& leaves,
                     const CheckOptions& options = {});

// The ops that check_gradients() has reached in this program so far.
const std::set<Op>& checked_ops();

}  // namespace tessera::testing
