// Cluster files, which `tessera plan --cluster` reads and `tessera plan --calibrate` writes. The
// keys, their units and ranges are a table; docs/cluster.md explains them.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/plan/cluster.h"
#include "training/recipe/yaml/yaml_tree.h"

namespace tessera::planner {

struct ClusterKey {
  std::string name;  // "inside.rate"
  std::string unit;  // for people: "bytes a second"
  bool required = false;
  std::string help;
  std::function<void(Cluster&, const training::YamlNode&)> read;
};
const std::vector<ClusterKey>& cluster_keys();

// Error(configuration) that begins with the place: for a key that is unknown (with the nearest
// name), missing, given twice, or has an invalid value.
Cluster parse_cluster(std::string_view text, const std::string& source);

// A file, or the name of a cluster that the program contains. Error(configuration) if there is
// neither.
Cluster find_cluster(const std::string& name_or_file);

struct ShippedCluster {
  std::string_view name;
  std::string_view text;
};
// From clusters/, built into the program.
const std::vector<ShippedCluster>& shipped_clusters();
std::string shipped_cluster_names(std::string_view separator);

// Text that parse_cluster reads again; the `comment` lines come first.
std::string cluster_text(const Cluster& cluster, const std::vector<std::string>& comment);

}  // namespace tessera::planner
