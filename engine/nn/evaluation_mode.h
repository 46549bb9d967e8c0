// Evaluation mode for a scope.
#pragma once

#include "engine/nn/module.h"

namespace tessera::nn {

// The module computes as in evaluation while this lives, and has its mode again afterwards.
class EvaluationMode {
 public:
  // `module` must outlive it.
  explicit EvaluationMode(Module& module) : module_(module), trains_(module.is_training()) {
    module_.eval();
  }
  ~EvaluationMode() { module_.train(trains_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  Module& module_;
  bool trains_;
};

}  // namespace tessera::nn
