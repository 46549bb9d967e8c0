// The state of the thread's generator.
#include "engine/random.h"

#include "base/error.h"

namespace tessera {
namespace {

thread_local GeneratorState generator;

constexpr std::uint64_t dropout_streams = std::uint64_t{1} << 63;  // apart from the parameters'
constexpr int dropouts_per_step_bits = 16;

}  // namespace

void manual_seed(std::uint64_t seed) {
  const std::int64_t part = generator.part;  // independent of the seed, so it stays
  generator = {};
  generator.seed = seed;
  generator.part = part;
}

std::uint64_t current_seed() {
  return generator.seed;
}

std::uint64_t next_parameter_stream() {
  return generator.parameters++;
}

void begin_batch(const BatchPosition& position) {
  generator.position = position;
  generator.has_position = true;
  generator.dropouts = 0;
}

void set_batch_part(std::int64_t part) {
  TESSERA_REQUIRE(part >= 0, "a part of a batch cannot be negative: {}", part);
  generator.part = part;
}

std::int64_t first_element_drawn(std::int64_t count, std::int64_t rows) {
  if (count == 0) return 0;
  const bool known = generator.has_position && generator.position.samples > 0;
  const std::int64_t samples = known ? generator.position.samples : rows;
  TESSERA_REQUIRE(samples > 0 && count % samples == 0,
                  "dropout: {} elements do not divide over {} samples", count, samples);
  const std::int64_t first_sample =
      generator.has_position ? generator.position.first_sample : generator.part * samples;
  return first_sample * (count / samples);
}

kernels::RandomKey next_dropout_key() {
  const std::uint64_t op = generator.dropouts++;
  const auto part = static_cast<std::uint64_t>(generator.position.part_of_samples);
  return {generator.seed + part * 0x9e3779b97f4a7c15u,
          dropout_streams | (generator.position.step << dropouts_per_step_bits) | op};
}

const GeneratorState& generator_state() {
  return generator;
}

void set_generator_state(const GeneratorState& state) {
  generator = state;
}

}  // namespace tessera
