// The thread's generator state.
#include "engine/random.h"

namespace tessera {
namespace {

thread_local GeneratorState generator;

constexpr std::uint64_t dropout_streams = std::uint64_t{1} << 63;  // apart from the parameters'
constexpr int dropouts_per_step_bits = 16;

}  // namespace

void manual_seed(std::uint64_t seed) {
  generator = {};
  generator.seed = seed;
}

std::uint64_t current_seed() {
  return generator.seed;
}

std::uint64_t next_parameter_stream() {
  return generator.parameters++;
}

void begin_batch(const BatchPosition& position) {
  generator.position = position;
  generator.dropouts = 0;
}

const BatchPosition& batch_position() {
  return generator.position;
}

kernels::RandomKey next_dropout_key() {
  const std::uint64_t op = generator.dropouts++;
  return {generator.seed,
          dropout_streams | (generator.position.step << dropouts_per_step_bits) | op};
}

const GeneratorState& generator_state() {
  return generator;
}

void set_generator_state(const GeneratorState& state) {
  generator = state;
}

}  // namespace tessera
