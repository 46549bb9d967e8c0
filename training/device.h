// Chooses the device that a run computes on.
#pragma once

#include <string>

#include "comm/world.h"
#include "engine/device/device.h"
#include "training/recipe/recipe.h"

namespace tessera::training {

// train.device for this rank. `cuda` is GPU number local_rank (modulo the number of GPUs if the
// node has fewer GPUs than ranks), or an Error(configuration) with the reason if no GPU can be
// used. `auto` is that GPU if every rank of the node has its own GPU and the ranks can communicate
// on GPUs (one rank, or NCCL), else the CPU.
Device choose_device(const Recipe& recipe, const comm::World& world);

// The same for the value of an option: auto, cpu or cuda. Error(usage) for anything else.
Device choose_device(const std::string& name, const comm::World& world);

// "cuda:0 (NVIDIA H200)"; "cpu"; with `auto` on the CPU also the reason why no GPU is used, if the
// node has a GPU driver: "cpu (no GPU for every rank)".
std::string describe_choice(const Recipe& recipe, Device device);

}  // namespace tessera::training
