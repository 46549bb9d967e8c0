// What `tessera launch` is told about hosts, in torchrun's and Accelerate's words.
#pragma once

#include <optional>
#include <string>

#include "launch/launch.h"
#include "training/recipe/accelerate/config.h"

namespace tessera::cli {

// As given; empty: not given.
struct LaunchNodes {
  std::string count, rank;
  std::string backend = "static";
  std::string endpoint, configuration;
  std::string key_file;
  bool without_key = false;

  // What the command line does not say.
  void take_configuration(const AccelerateConfig& config);
  void take_endpoint(LaunchOptions& launch, bool wants_address, bool wants_port) const;
  [[nodiscard]] bool has_endpoint() const { return !endpoint.empty(); }
  // Checks all of it, and sets the options' nodes, port and key. Throws Error(usage), and
  // Error(configuration) for a key that is none.
  void settle(LaunchOptions& launch, bool has_address) const;
  // Of so many ranks of all hosts those of this one; `what` says where the number comes from.
  [[nodiscard]] int share_of(int ranks, const std::string& what) const;
  void check_threads(const std::string& threads) const;

 private:
  [[nodiscard]] int nodes() const;
  [[nodiscard]] int node_rank() const;
  [[nodiscard]] comm::control::JobKey key() const;
  void settle_meeting(LaunchOptions& launch, bool has_address) const;
};

}  // namespace tessera::cli
