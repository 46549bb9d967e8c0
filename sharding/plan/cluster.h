// The properties of a machine that the time of a training step depends on: the compute and memory
// rates of one device, and the links between devices. docs/cluster.md describes its file.
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

// A kernel's time as measured in training, with `ranks` ranks of a node at work together.
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

  // Rates of one device, or of one core while all are busy.
  std::map<DType, double> matrix_rate;  // operations a second
  double matrix_efficiency = 1;         // the part of it that the best products reach
  double attention_efficiency = 1;      // the part of it that attention reaches
  double memory_rate = 0;               // bytes a second
  double memory_efficiency = 1;
  double launch = 0;        // seconds: on a GPU the least time of a kernel, on a CPU added to it
  int multiprocessors = 0;  // that share a product's tiles; 0: the tiles divide evenly

  Link inside;                 // between devices of a node
  std::optional<Link> across;  // between nodes: a device's share of its node's network
  std::optional<Link> host_link;
  std::optional<double> disk_read, disk_write;  // bytes a second, of a node

  std::vector<MeasuredKernel> measured;
};

}  // namespace tessera
