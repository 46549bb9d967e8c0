// Reading and writing cluster files.
#include "planner/cluster_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/text/byte_size.h"
#include "base/text/nearest.h"
#include "base/text/small_file.h"
#include "training/recipe/values.h"

namespace tessera::planner {
namespace {

using training::Choice;
using training::refuse_value;
using training::YamlNode;

// All machines are many orders of magnitude below these limits: a larger value has a wrong unit.
constexpr double largest_rate = 1e18;
constexpr double largest_latency = 1;
constexpr double largest_memory = 1e15;
constexpr int largest_node = 65'536;

// The units after the number of a rate, longest first.
using RateUnits = std::vector<std::string_view>;
const RateUnits& operation_units() {
  static const RateUnits units = {"FLOP/s", "OP/s"};
  return units;
}
const RateUnits& byte_units() {
  static const RateUnits units = {"iB/s", "B/s", "iB", "B"};
  return units;
}

// "3.35e12", "989 TFLOP/s" of operations, "3.35TB/s" and "25 GiB/s" of bytes.
std::optional<double> parse_rate(std::string_view text, const RateUnits& units) {
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(stop - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  bool binary = false;
  for (const std::string_view known : units) {
    if (!unit.ends_with(known)) continue;
    binary = known.starts_with('i');
    unit.remove_suffix(known.size());
    break;
  }
  if (unit.empty()) return binary ? std::nullopt : std::optional(number);
  const std::size_t power = std::string_view("kMGTP").find(unit);
  if (unit.size() != 1 || power == std::string_view::npos) return std::nullopt;
  return number * std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
}

std::optional<double> parse_seconds(std::string_view text) {
  double number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(stop - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.empty() || unit == "s") return number;
  if (unit == "ms") return number * 1e-3;
  if (unit == "us") return number * 1e-6;
  if (unit == "ns") return number * 1e-9;
  return std::nullopt;
}

// A scalar that is not in quotes.
std::string plain_text(const YamlNode& node) {
  return node.kind == YamlNode::Kind::scalar && !node.quoted ? node.text : std::string();
}

double read_rate(const YamlNode& node, const std::string& key, const RateUnits& units,
                 std::string_view example) {
  const auto rate = parse_rate(plain_text(node), units);
  if (!rate || !(*rate > 0) || *rate > largest_rate) {
    refuse_value(node, key,
                 fmt::format("a number above 0 and at most 1e18 a second, as {}", example));
  }
  return *rate;
}
double read_operation_rate(const YamlNode& node, const std::string& key) {
  return read_rate(node, key, operation_units(), "9.89e14 or 989 TFLOP/s");
}
double read_byte_rate(const YamlNode& node, const std::string& key) {
  return read_rate(node, key, byte_units(), "3.35e12 or 3.35 TB/s");
}

double read_seconds(const YamlNode& node, const std::string& key) {
  const auto seconds = parse_seconds(plain_text(node));
  if (!seconds || !(*seconds >= 0) || *seconds > largest_latency) {
    refuse_value(node, key, "seconds from 0 to 1, as 5e-6 or 5us");
  }
  return *seconds;
}

double read_part(const YamlNode& node, const std::string& key) {
  const double part = training::read_number(node, key);
  if (!(part > 0) || part > 1) refuse_value(node, key, "above 0 and at most 1");
  return part;
}

int read_count(const YamlNode& node, const std::string& key, int most) {
  const std::int64_t count = training::read_integer(node, key);
  if (count < 1 || count > most) {
    refuse_value(node, key, fmt::format("a whole number from 1 to {}", most));
  }
  return static_cast<int>(count);
}

const std::vector<Choice<DType>>& product_dtypes() {
  static const std::vector<Choice<DType>> choices = {
      {"float32", float32}, {"bfloat16", bfloat16}, {"float16", float16}, {"float64", float64}};
  return choices;
}

const std::vector<Choice<DType>>& measured_dtypes() {
  static const std::vector<Choice<DType>> choices = {
      {"float32", float32}, {"bfloat16", bfloat16}, {"float16", float16}, {"float64", float64},
      {"int32", int32},     {"int64", int64},       {"uint8", uint8},     {"boolean", boolean}};
  return choices;
}

Link& link_of(Link& link) {
  return link;
}
Link& link_of(std::optional<Link>& link) {
  return link ? *link : link.emplace();
}

// The place of a number of a link. A link that may be absent is there as soon as a number is.
template <class L>
auto of_link(L Cluster::*link, double Link::*number) {
  return [link, number](Cluster& cluster) -> double& { return link_of(cluster.*link).*number; };
}

// One line of `measured`: [kernel, dtype, ranks, m, n, k, batch, operations, bytes, seconds].
constexpr std::size_t measured_fields = 10;
MeasuredKernel read_measured(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::sequence || node.items.size() != measured_fields) {
    refuse_value(node, "measured",
                 "lists of kernel, dtype, ranks, m, n, k, batch, operations, bytes, seconds");
  }
  const auto& items = node.items;
  MeasuredKernel one;
  const std::string name = training::read_text(items[0], "measured");
  const auto kernel = kernel_named(name);
  if (!kernel) {
    std::vector<std::string> names;
    for (int i = 0; i < kernel_count; ++i) {
      names.emplace_back(name_of(static_cast<KernelId>(i)));
    }
    fail(ErrorCode::configuration, "{}: measured: unknown kernel {}{}", items[0].where, name,
         did_you_mean(name, names));
  }
  one.work.kernel = *kernel;
  one.work.dtype = training::read_choice(items[1], "measured", measured_dtypes());
  one.ranks = read_count(items[2], "measured", largest_node);
  std::array<std::int64_t*, 4> shape = {&one.work.m, &one.work.n, &one.work.k, &one.work.batch};
  for (std::size_t i = 0; i < shape.size(); ++i) {
    *shape[i] = training::read_integer(items[3 + i], "measured");
    training::check_range(items[3 + i], "measured", training::at_least(0),
                          static_cast<double>(*shape[i]));
  }
  std::array<double*, 3> numbers = {&one.work.operations, &one.work.bytes, &one.seconds};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    *numbers[i] = training::read_number(items[7 + i], "measured");
    training::check_range(items[7 + i], "measured",
                          i == 2 ? training::above(0) : training::at_least(0), *numbers[i]);
  }
  return one;
}

std::vector<MeasuredKernel> read_measured_list(const YamlNode& node, const std::string& key) {
  if (node.kind != YamlNode::Kind::sequence) refuse_value(node, key, "a list");
  std::vector<MeasuredKernel> measured;
  for (const YamlNode& item : node.items) measured.push_back(read_measured(item));
  return measured;
}

DeviceType read_device(const YamlNode& node, const std::string& key) {
  static const std::vector<Choice<DeviceType>> choices = {{"cpu", DeviceType::cpu},
                                                          {"cuda", DeviceType::cuda}};
  return training::read_choice(node, key, choices);
}

std::uint64_t read_memory(const YamlNode& node, const std::string& key) {
  const auto bytes = parse_bytes(plain_text(node));
  if (!bytes || static_cast<double>(*bytes) > largest_memory) {
    refuse_value(node, key, "a number of bytes up to 1e15, as 80GB or 79.2GiB");
  }
  return *bytes;
}

std::vector<ClusterKey> make_keys() {
  std::vector<ClusterKey> keys;
  const auto add = [&](std::string name, std::string unit, bool required, std::string help,
                       auto read, auto place) {
    std::string key = name;
    const auto store = [key, read, place](Cluster& cluster, const YamlNode& node) {
      std::invoke(place, cluster) = read(node, key);
    };
    keys.push_back({std::move(name), std::move(unit), required, std::move(help), store});
  };
  const auto count = [](const YamlNode& node, const std::string& key) {
    return read_count(node, key, largest_node);
  };
  add("name", "text", true, "The name in reports", training::read_text, &Cluster::name);
  add("device", "cpu, cuda", true, "The device of the ranks", read_device, &Cluster::device);
  add("per_node", "count", true, "GPUs of a node, or cores of a node without GPUs", count,
      &Cluster::per_node);
  add("memory", "bytes", false, "Memory of a GPU, or of a core", read_memory, &Cluster::memory);
  for (const Choice<DType>& dtype : product_dtypes()) {
    add("matrix_rate." + std::string(dtype.name), "operations a second", false,
        fmt::format("Matrix products of {}, of a GPU or of a core", dtype.name),
        read_operation_rate,
        [value = dtype.value](Cluster& c) -> double& { return c.matrix_rate[value]; });
  }
  add("matrix_efficiency", "part", false, "The part of matrix_rate that the best products reach",
      read_part, &Cluster::matrix_efficiency);
  add("attention_efficiency", "part", false, "The part of matrix_rate that attention reaches",
      read_part, &Cluster::attention_efficiency);
  add("multiprocessors", "count", false, "Multiprocessors that share the tiles of a product", count,
      &Cluster::multiprocessors);
  add("memory_rate", "bytes a second", true, "Read and written together, of a GPU or of a core",
      read_byte_rate, &Cluster::memory_rate);
  add("memory_efficiency", "part", false, "The part of memory_rate that kernels reach", read_part,
      &Cluster::memory_efficiency);
  add("launch", "seconds", false,
      "The shortest time of a GPU's kernel; on a CPU, a kernel's fixed time", read_seconds,
      &Cluster::launch);
  add("inside.rate", "bytes a second", true, "The rate at which a device receives from its node",
      read_byte_rate, of_link(&Cluster::inside, &Link::rate));
  add("inside.latency", "seconds", true, "The latency of a message inside a node", read_seconds,
      of_link(&Cluster::inside, &Link::latency));
  add("across.rate", "bytes a second", false,
      "The rate at which a device receives from other nodes", read_byte_rate,
      of_link(&Cluster::across, &Link::rate));
  add("across.latency", "seconds", false, "The latency of a message between nodes", read_seconds,
      of_link(&Cluster::across, &Link::latency));
  add("host_link.rate", "bytes a second", false, "The rate between a GPU and its host, each way",
      read_byte_rate, of_link(&Cluster::host_link, &Link::rate));
  add("host_link.latency", "seconds", false, "The latency of a copy between a GPU and its host",
      read_seconds, of_link(&Cluster::host_link, &Link::latency));
  add("disk.read", "bytes a second", false, "The read rate of a node's disk", read_byte_rate,
      &Cluster::disk_read);
  add("disk.write", "bytes a second", false, "The write rate of a node's disk", read_byte_rate,
      &Cluster::disk_write);
  add("measured", "list", false, "Kernels that --calibrate timed", read_measured_list,
      &Cluster::measured);
  return keys;
}

const ClusterKey* key_named(const std::string& name) {
  for (const ClusterKey& key : cluster_keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}
bool is_group(const std::string& name) {
  for (const ClusterKey& key : cluster_keys()) {
    if (key.name.starts_with(name + ".")) return true;
  }
  return false;
}

[[noreturn]] void refuse_unknown_key(const std::string& place, const std::string& group,
                                     const std::string& name) {
  std::set<std::string> siblings;
  for (const ClusterKey& key : cluster_keys()) {
    if (group.empty()) {
      siblings.insert(key.name.substr(0, key.name.find('.')));
    } else if (key.name.starts_with(group + ".")) {
      siblings.insert(key.name.substr(group.size() + 1));
    }
  }
  std::string near = did_you_mean(name, {siblings.begin(), siblings.end()});
  if (near.empty()) near = fmt::format("; there are {}", fmt::join(siblings, ", "));
  fail(ErrorCode::configuration, "{}: unknown key {}{}{}{}", place, group, group.empty() ? "" : ".",
       name, near);
}

void read_group(Cluster& cluster, const YamlNode& mapping, const std::string& group,
                std::set<std::string>& given) {
  for (std::size_t i = 0; i < mapping.keys.size(); ++i) {
    const std::string& word = mapping.keys[i].text;
    const std::string name = group.empty() ? word : group + "." + word;
    const YamlNode& value = mapping.items[i];
    if (const ClusterKey* const key = key_named(name)) {
      key->read(cluster, value);
      given.insert(name);
    } else if (!group.empty() || !is_group(name)) {
      refuse_unknown_key(mapping.keys[i].where, group, word);
    } else if (value.kind != YamlNode::Kind::mapping) {
      refuse_value(value, name, "a group of keys");
    } else {
      read_group(cluster, value, name, given);
    }
  }
}

// Keys that belong together must be given together.
void check_given(const std::set<std::string>& given, const std::string& source) {
  for (const ClusterKey& key : cluster_keys()) {
    if (given.contains(key.name)) continue;
    const std::string group = key.name.substr(0, key.name.find('.'));
    const bool half = (group == "across" || group == "host_link" || group == "disk") &&
                      (given.contains(group + ".rate") || given.contains(group + ".latency") ||
                       given.contains(group + ".read") || given.contains(group + ".write"));
    TESSERA_CHECK(!key.required && !half, ErrorCode::configuration,
                  "{}: {} is missing ({}: {}); docs/cluster.md describes the keys", source,
                  key.name, key.unit, key.help);
  }
  for (const Choice<DType>& dtype : product_dtypes()) {
    if (given.contains("matrix_rate." + std::string(dtype.name))) return;
  }
  fail(ErrorCode::configuration,
       "{}: matrix_rate is missing: operations a second by dtype, as matrix_rate: {{bfloat16: "
       "989 TFLOP/s}}",
       source);
}

std::vector<std::string> shipped_names() {
  std::vector<std::string> names;
  for (const ShippedCluster& shipped : shipped_clusters()) names.emplace_back(shipped.name);
  return names;
}

}  // namespace

const std::vector<ClusterKey>& cluster_keys() {
  static const std::vector<ClusterKey> keys = make_keys();
  return keys;
}

Cluster parse_cluster(std::string_view text, const std::string& source) {
  const YamlNode tree = training::parse_yaml(text, source);
  if (tree.kind != YamlNode::Kind::mapping) {
    fail(ErrorCode::configuration, "{}: a cluster file is a group of keys, got {}", source,
         training::describe(tree));
  }
  Cluster cluster;
  std::set<std::string> given;
  read_group(cluster, tree, "", given);
  check_given(given, source);
  return cluster;
}

std::string shipped_cluster_names(std::string_view separator) {
  return fmt::format("{}", fmt::join(shipped_names(), separator));
}

Cluster find_cluster(const std::string& name_or_file) {
  for (const ShippedCluster& shipped : shipped_clusters()) {
    if (shipped.name == name_or_file) {
      return parse_cluster(shipped.text, fmt::format("clusters/{}.yaml", shipped.name));
    }
  }
  if (!std::filesystem::exists(name_or_file)) {
    const std::vector<std::string> names = shipped_names();
    fail(ErrorCode::configuration, "--cluster {}: no such file, and the clusters by name are {}{}",
         name_or_file, fmt::join(names, ", "), did_you_mean(name_or_file, names));
  }
  return parse_cluster(read_small_file(name_or_file, "cluster"), name_or_file);
}

std::string cluster_text(const Cluster& cluster, const std::vector<std::string>& comment) {
  std::string text;
  for (const std::string& line : comment) text += "# " + line + "\n";
  text += fmt::format("name: {}\ndevice: {}\nper_node: {}\n", nlohmann::json(cluster.name).dump(),
                      cluster.device == DeviceType::cuda ? "cuda" : "cpu", cluster.per_node);
  if (cluster.memory) text += fmt::format("memory: {}\n", *cluster.memory);
  text += "matrix_rate:\n";
  for (const auto& [dtype, rate] : cluster.matrix_rate) {
    text += fmt::format("  {}: {:.4g}\n", name_of(dtype), rate);
  }
  text += fmt::format("memory_rate: {:.4g}\nlaunch: {:.3g}\n", cluster.memory_rate, cluster.launch);
  text += fmt::format("inside: {{rate: {:.4g}, latency: {:.3g}}}\n", cluster.inside.rate,
                      cluster.inside.latency);
  if (cluster.disk_read && cluster.disk_write) {
    text += fmt::format("disk: {{read: {:.4g}, write: {:.4g}}}\n", *cluster.disk_read,
                        *cluster.disk_write);
  }
  if (cluster.measured.empty()) return text;
  text += "# kernel, dtype, ranks at work, m, n, k, batch, operations, bytes, seconds\nmeasured:\n";
  for (const MeasuredKernel& one : cluster.measured) {
    text += fmt::format("  - [{}, {}, {}, {}, {}, {}, {}, {:.6g}, {:.6g}, {:.4g}]\n",
                        name_of(one.work.kernel), name_of(one.work.dtype), one.ranks, one.work.m,
                        one.work.n, one.work.k, one.work.batch, one.work.operations, one.work.bytes,
                        one.seconds);
  }
  return text;
}

}  // namespace tessera::planner
