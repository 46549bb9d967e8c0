// The factor that keeps gradients of 16-bit floats (float16) inside their range.
//
//   LossScaler scaler;
//   scaler.scale(loss).backward();
//   const double norm = model.clip_grad_norm(1.0, scaler.factor());
//   if (scaler.update(norm)) optimizer.step();
//   optimizer.zero_grad();
//
// The norm is the same on every rank, and it is not finite when a gradient of any rank is not. So
// either all ranks take the step or none does, without an extra message. Factors are powers of two:
// scaling does not change the bits of gradients, except of those that float16 would have lost.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/ops.h"
#include "engine/tensor.h"

namespace tessera {

// Defaults are torch.amp.GradScaler's.
struct LossScaleOptions {
  std::optional<double> fixed = std::nullopt;  // this factor, always
  double initial = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // good steps in a row before it grows
  double minimum = 1;                   // below it, training has failed
};

class LossScaler {
 public:
  // Error(configuration) for factors that are not powers of two or that cannot work.
  explicit LossScaler(const LossScaleOptions& options = {});

  [[nodiscard]] Tensor scale(const Tensor& loss) const { return loss * state_.factor; }
  // The factor that multiplies the loss of the present step.
  [[nodiscard]] double factor() const { return state_.factor; }
  // Call it after the backwards of a step, with the norm of all gradients; returns whether the
  // optimizer may take the step. Error(numeric) when no factor helps: the dynamic one would fall
  // below the minimum, or a fixed one has lost too many steps in a row.
  bool update(double grad_norm);

  // The state that a checkpoint stores.
  struct State {
    double factor = 0;
    std::int64_t good_steps = 0;     // in a row, since the factor last changed
    std::int64_t skipped_steps = 0;  // in all
    friend bool operator==(const State&, const State&) = default;
  };
  [[nodiscard]] const State& state() const { return state_; }
  // A fixed factor does not change. Error(checkpoint) for a state that no scaler has saved.
  void restore(const State& state);

 private:
  LossScaleOptions options_;
  State state_;
  int skipped_in_a_row_ = 0;
};

}  // namespace tessera
