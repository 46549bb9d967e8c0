// A machine as far as the time of a training step depends on it: what one device computes and
// moves, and the links between devices. docs/cluster.md describes the file behind it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/device/device.h"
#include "engine/planned/kernel_work.h"

namespace tessera {

struct Link {
  double rate = 0;     // bytes a second that reach one device
  double latency = 0;  // seconds of a message without bytes
};

// A kernel's time as it was measured in training: `ranks` of a node at work together.
struct MeasuredKernel {
  KernelWork work;
  int ranks = 1;
  double seconds = 0;
};

struct Cluster {
  std::string name;
  DeviceType device = DeviceType::cuda;
  int per_node = 8;                     // devices; of a CPU host, cores
  std::optional<std::uint64_t> memory;  // bytes of a device; of a CPU host, of a core

  // Of one device, or of one core while all are busy.
  std::map<DType, double> matrix_rate;  // operations a second
  double matrix_efficiency = 1;         // what the best products reach of it
  double attention_efficiency = 1;      // and attention
  double memory_rate = 0;               // bytes a second
  double memory_efficiency = 1;
  double launch = 0;  // seconds: of a GPU the least that a kernel takes, of a CPU on top of it
  int multiprocessors = 0;  // that share out a product's tiles; 0: it divides without rest

  Link inside;                 // between devices of a node
  std::optional<Link> across;  // between nodes: a device's share of its node's network
  std::optional<Link> host_link;
  std::optional<double> disk_read, disk_write;  // bytes a second, of a node

  std::vector<MeasuredKernel> measured;
};

}  // namespace tessera
