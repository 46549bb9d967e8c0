// Which random numbers a rank draws. Numbers are functions of (seed, step, op, sample, element),
// never of the rank or of how often something was drawn before, so dropout and initial values do
// not change with the world.
#pragma once

#include <cstdint>

#include "kernels/random.h"

namespace tessera {

// Seeds the calling thread's generator and starts its numbering of parameters anew.
void manual_seed(std::uint64_t seed);
std::uint64_t current_seed();

// The number of the next parameter created on this thread.
std::uint64_t next_parameter_stream();

// What the samples of the present forward are: `first_sample` is the global number of row 0 of the
// batch, `samples` the rows of this rank, `step` any number that differs between forwards. Without
// it, every forward counts as a new step from sample 0.
struct BatchPosition {
  std::uint64_t step = 0;
  std::int64_t first_sample = 0;
  std::int64_t samples = 0;
  friend bool operator==(const BatchPosition&, const BatchPosition&) = default;
};
void begin_batch(const BatchPosition& position);
const BatchPosition& batch_position();

// The key of the next dropout of this forward.
kernels::RandomKey next_dropout_key();

// Where the calling thread's generator stands: whoever computes something a second time goes back
// to where it stood before the first.
struct GeneratorState {
  std::uint64_t seed = 0;
  std::uint64_t parameters = 0;  // drawn since the seed
  std::uint64_t dropouts = 0;    // drawn in this forward
  BatchPosition position;
  friend bool operator==(const GeneratorState&, const GeneratorState&) = default;
};
const GeneratorState& generator_state();
void set_generator_state(const GeneratorState& state);

}  // namespace tessera
