// A task of a program's own: a module, samples in memory, and their loss.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine/data/tensor_loader.h"
#include "engine/nn/module.h"
#include "tasks/task.h"

namespace tessera::tasks {

// The mean loss of a rank's batch, on the rank's device. Both tensors have the batch's samples in
// their first dimension, and else the shape and dtype of the data set's.
using TensorLoss = std::function<Tensor(const Tensor& inputs, const Tensor& targets)>;

struct TensorTaskOptions {
  bool shuffle = true;  // each epoch has an order of its own
  std::uint64_t seed = 0;
};

// `module` must outlive the task; `loss` calls it. The samples stay on the CPU. Throws
// std::logic_error or Error(data) for samples that do not fit together (data::check_samples).
std::unique_ptr<Task> make_tensor_task(nn::Module& module, data::TensorDataset samples,
                                       TensorLoss loss, const TensorTaskOptions& options = {});

}  // namespace tessera::tasks
