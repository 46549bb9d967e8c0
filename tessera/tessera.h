// The whole library for a program that trains: modules, operations, optimizers, data, sharding,
// checkpoints.
#pragma once

#include "checkpoint/async_save.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/export.h"
#include "checkpoint/sharded_state.h"
#include "engine/autograd.h"
#include "engine/data/tensor_loader.h"
#include "engine/nn/layers.h"
#include "engine/nn/module.h"
#include "engine/ops.h"
#include "engine/optim/optimizer.h"
#include "engine/optim/schedule.h"
#include "engine/random.h"
#include "engine/recompute.h"
#include "engine/tensor.h"
#include "kernels/base/error.h"
#include "sharding/context.h"
#include "sharding/fully_shard.h"
#include "sharding/plan.h"
#include "tessera/version.h"
