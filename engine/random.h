// The random numbers that a rank draws. They are functions of (seed, step, op, sample, element),
// and never of the rank or of the number of earlier draws. Dropout and initial values therefore do
// not change with the world.
#pragma once

#include <cstdint>

#include "kernels/random.h"

namespace tessera {

// Seeds the calling thread's generator and restarts its numbering of parameters.
void manual_seed(std::uint64_t seed);
std::uint64_t current_seed();

// The number of the next parameter created on this thread.
std::uint64_t next_parameter_stream();

// The samples of the present forward. `first_sample` is the global number of row 0 of the batch,
// `samples` the number of rows of this rank, `step` any number that differs between forwards.
//
// Without it, every draw has a number of its own, and this thread's batch counts as one of several
// equally large parts; set_batch_part() sets its index. Row 0 of n rows is then sample part * n.
// ts::init and ts::launch set the part to the rank, so ranks that read their own data draw
// different masks. These equal the masks that one rank draws for all rows, in the order of ranks.
struct BatchPosition {
  std::uint64_t step = 0;
  std::int64_t first_sample = 0;
  std::int64_t samples = 0;
  // If several ranks hold the samples' positions together: this rank's part. If the samples do not
  // follow one another: the rank. Each draws masks of its own, and not those of whole batches.
  std::int64_t part_of_samples = 0;
  friend bool operator==(const BatchPosition&, const BatchPosition&) = default;
};
void begin_batch(const BatchPosition& position);
void set_batch_part(std::int64_t part);

// The global number of the first of `count` elements that an op draws, evenly divided among the
// samples of this thread's batch. `rows` is the number of samples if begin_batch() did not set it.
std::int64_t first_element_drawn(std::int64_t count, std::int64_t rows);

// The key of the next dropout of this forward.
kernels::RandomKey next_dropout_key();

// The state of the calling thread's generator. Code that computes something a second time restores
// the state from before the first time.
struct GeneratorState {
  std::uint64_t seed = 0;
  std::uint64_t parameters = 0;  // drawn since the seed
  std::uint64_t dropouts = 0;    // drawn in this forward
  BatchPosition position;
  bool has_position = false;  // begin_batch() set one since the seed
  std::int64_t part = 0;      // used if it set none
  friend bool operator==(const GeneratorState&, const GeneratorState&) = default;
};
const GeneratorState& generator_state();
void set_generator_state(const GeneratorState& state);

}  // namespace tessera
