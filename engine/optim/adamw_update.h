// AdamW's step on some elements, for every optimizer that has such parameters.
#pragma once

#include "engine/optim/optimizer.h"

namespace tessera::optim {

// `rate` is the learning rate without the update's lr_scale.
void update_by_adamw(const Update& update, double rate, const AdamWOptions& options);

}  // namespace tessera::optim
