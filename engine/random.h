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
// batch, `samples` the rows of this rank, `step` any number that differs between forwards.
//
// Without it, every draw has a number of its own, and this thread's batch counts as one of equally
// large ones, the part that set_batch_part() names: row 0 of n rows is sample part * n. ts::init
// and ts::launch make the part the rank, so ranks that read their own data draw different masks:
// those that one rank draws for all rows, rank after rank.
struct BatchPosition {
  std::uint64_t step = 0;
  std::int64_t first_sample = 0;
  std::int64_t samples = 0;
  friend bool operator==(const BatchPosition&, const BatchPosition&) = default;
};
void begin_batch(const BatchPosition& position);
void set_batch_part(std::int64_t part);

// The global number of the first of `count` elements that an op draws for, the same number of them
// for each sample of this thread's batch. `rows` is the number of samples where begin_batch() did
// not say it.
std::int64_t first_element_drawn(std::int64_t count, std::int64_t rows);

// The key of the next dropout of this forward.
kernels::RandomKey next_dropout_key();

// Where the calling thread's generator stands: whoever computes something a second time goes back
// to where it stood before the first.
struct GeneratorState {
  std::uint64_t seed = 0;
  std::uint64_t parameters = 0;  // drawn since the seed
  std::uint64_t dropouts = 0;    // drawn in this forward
  BatchPosition position;
  bool has_position = false;  // begin_batch() gave one since the seed
  std::int64_t part = 0;      // which holds where it gave none
  friend bool operator==(const GeneratorState&, const GeneratorState&) = default;
};
const GeneratorState& generator_state();
void set_generator_state(const GeneratorState& state);

}  // namespace tessera
