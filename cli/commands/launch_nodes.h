// The options of `tessera launch` about nodes, under torchrun's and Accelerate's names.
#pragma once

#include <string>

#include "launch/launch.h"
#include "training/recipe/accelerate/config.h"

namespace tessera::cli {

// As given; empty if not given.
struct LaunchNodes {
  std::string count, rank;
  std::string backend = "static";
  std::string endpoint, configuration;
  std::string key_file;
  bool without_key = false;

  // Takes the values that the command line does not have.
  void take_configuration(const training::AccelerateConfig& config);
  void take_endpoint(launcher::LaunchOptions& launch, bool wants_address, bool wants_port) const;
  [[nodiscard]] bool has_endpoint() const { return !endpoint.empty(); }
  // Checks all of it, and sets the options' nodes, port and key. Throws Error(usage), and
  // Error(configuration) for a key that is not valid.
  void settle(launcher::LaunchOptions& launch, bool has_address) const;
  // This node's part of the ranks of all nodes; `what` names the origin of the number.
  [[nodiscard]] int share_of(int ranks, const std::string& what) const;
  void check_threads(const std::string& threads) const;

 private:
  [[nodiscard]] int nodes() const;
  [[nodiscard]] int node_rank() const;
  [[nodiscard]] comm::control::JobKey key() const;
  void settle_meeting(launcher::LaunchOptions& launch, bool has_address) const;
};

}  // namespace tessera::cli
