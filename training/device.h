// Which device a run computes on.
#pragma once

#include <string>

#include "comm/world.h"
#include "engine/device/device.h"
#include "training/recipe/recipe.h"

namespace tessera::cli {

// train.device for this rank. `cuda` is GPU number local_rank (counted round where there are fewer
// GPUs than ranks of the host), and an Error(configuration) with the reason where none can be used.
// `auto` is that GPU when every rank of the host has one of its own and the ranks can talk to each
// other there (one rank, or NCCL), else the CPU.
Device choose_device(const Recipe& recipe, const comm::World& world);

// The same of an option's value: auto, cpu or cuda. Error(usage) for anything else.
Device choose_device(const std::string& name, const comm::World& world);

// "cuda:0 (NVIDIA H200)"; "cpu"; with `auto` on the CPU also why no GPU is used, where the machine
// has a driver for one: "cpu (no GPU for every rank)".
std::string describe_choice(const Recipe& recipe, Device device);

}  // namespace tessera::cli
