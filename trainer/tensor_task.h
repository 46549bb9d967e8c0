// A task of a program's own: a module, samples in memory, and their loss.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/data/tensor_loader.h"
#include "engine/nn/module.h"
#include "tasks/task.h"

namespace tessera::tasks {

// The mean loss of a batch, on the rank's device.
using TensorLoss = std::function<Tensor(const Tensor& inputs, const Tensor& targets)>;

struct TensorTaskOptions {
  bool shuffle = true;  // each epoch has an order of its own
  std::uint64_t seed = 0;
};

// `module` must outlive the task.
std::unique_ptr<Task> make_tensor_task(nn::Module& module, data::TensorDataset samples,
                                       TensorLoss loss, const TensorTaskOptions& options = {});

}  // namespace tessera::tasks
