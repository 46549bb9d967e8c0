// AdamW with moments of 8 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/eight_bit.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/settings.h"

namespace tessera::optim {

class AdamW8Bit;
struct AdamW8BitOptions {
  using Made = AdamW8Bit;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  // Parameters with fewer elements than this keep fp32 moments, as bitsandbytes' do.
  std::int64_t min_8bit_size = 4096;
  ParameterFilter decay = {};  // which parameters decay; empty: all
  std::vector<ParameterGroup> groups = {};
};

Settings settings_of(const AdamW8BitOptions& options);
// Shard boundaries lie between blocks, and small parameters apart.
ShardNeeds needs_of(const AdamW8BitOptions& options);

// AdamW (AdamWOptions) whose moments are codes of 8 bits with a scale for each block of 256
// elements of a parameter (base/eight_bit.h): the dynamic maps and blocks of bitsandbytes'
// AdamW8bit. The state is 2 bytes an element and 1/32 byte for the scales, instead of 8. A
// parameter's step takes the moments before they are rounded; decay is decoupled and comes first,
// as in AdamW.
//
// A block belongs to one parameter and one shard, so the bits are the same under every strategy and
// on every world. That requires ShardingOptions of needs_of() (a Trainer sets them).
class AdamW8Bit : public Optimizer {
 public:
  // Error(configuration) if parameters, gradients or state are offloaded, if a shard boundary lies
  // inside a block, or if a trained parameter is fp64.
  AdamW8Bit(std::vector<nn::NamedParameter> parameters, const AdamW8BitOptions& options);
  [[nodiscard]] std::vector<std::string> state_names() const override {
    return {"exp_avg_8bit", "exp_avg_scale", "exp_avg_sq_8bit", "exp_avg_sq_scale"};
  }
  // Small parameters have AdamW's.
  [[nodiscard]] std::vector<std::string> state_names_of(std::size_t parameter) const override;
  [[nodiscard]] StateFormat state_format(std::size_t parameter, std::size_t which) const override;

 protected:
  void update(const Update& update) override;

 private:
  [[nodiscard]] bool is_small(std::size_t parameter) const;
  void check_parameters() const;

  AdamW8BitOptions options_;
};

}  // namespace tessera::optim
