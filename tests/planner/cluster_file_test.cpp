// Cluster files: those in the program, files that are written and read again, and refused files.
#include "planner/cluster_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "tests/support/errors.h"

namespace tessera::planner {
namespace {

const std::string good_cluster =
    "name: a machine\ndevice: cuda\nper_node: 8\nmemory: 80GB\nmatrix_rate: {bfloat16: 989 "
    "TFLOP/s}\n"
    "memory_rate: 3.35 TB/s\nlaunch: 5us\ninside: {rate: 370 GB/s, latency: 3e-6}\n";

std::string cluster_refusal(const std::string& text) {
  return testing::error_of([&] { return parse_cluster(text, "c.yaml"); }, ErrorCode::configuration);
}

// `good_cluster` with one line instead of the one that begins with `key`.
std::string with_line(const std::string& key, const std::string& line) {
  std::istringstream lines(good_cluster);
  std::string text;
  for (std::string one; std::getline(lines, one);) {
    text += (one.starts_with(key + ":") ? line : one) + "\n";
  }
  return text;
}

TEST(ClusterFile, ReadsRatesAndSecondsWithTheirUnits) {
  const Cluster cluster = parse_cluster(good_cluster, "c.yaml");
  EXPECT_EQ(cluster.name, "a machine");
  EXPECT_EQ(cluster.per_node, 8);
  EXPECT_EQ(cluster.memory, 80'000'000'000U);
  EXPECT_DOUBLE_EQ(cluster.matrix_rate.at(bfloat16), 989e12);
  EXPECT_DOUBLE_EQ(cluster.memory_rate, 3.35e12);
  EXPECT_DOUBLE_EQ(cluster.launch, 5e-6);
  EXPECT_DOUBLE_EQ(cluster.inside.rate, 370e9);
  EXPECT_DOUBLE_EQ(cluster.inside.latency, 3e-6);
  EXPECT_FALSE(cluster.across.has_value());
  const Cluster binary = parse_cluster(with_line("memory_rate", "memory_rate: 2 GiB/s"), "c.yaml");
  EXPECT_DOUBLE_EQ(binary.memory_rate, 2.0 * 1024 * 1024 * 1024);
}

TEST(ClusterFile, RefusesInvalidValues) {
  const struct {
    std::string text, says;
  } cases[] = {
      {with_line("memory_rate", ""), "memory_rate is missing"},
      {with_line("matrix_rate", ""), "matrix_rate is missing"},
      {with_line("inside", "inside: {rate: 1e9}"), "inside.latency is missing"},
      {good_cluster + "across: {rate: 50 GB/s}\n", "across.latency is missing"},
      {with_line("memory_rate", "memory_rate: -1"),
       "c.yaml:6: memory_rate must be a number above 0"},
      {with_line("memory_rate", "memory_rate: 0"), "above 0"},
      {with_line("memory_rate", "memory_rate: nan"), "above 0"},
      {with_line("memory_rate", "memory_rate: 1e30"), "at most 1e18"},
      {with_line("memory_rate", "memory_rate: 3 parsecs"), "as 3.35e12 or 3.35 TB/s"},
      {with_line("memory_rate", "memory_rate: 989 TFLOP/s"), "as 3.35e12 or 3.35 TB/s"},
      {with_line("matrix_rate", "matrix_rate: {bfloat16: 25 GB/s}"), "as 9.89e14 or 989 TFLOP/s"},
      {with_line("launch", "launch: 5 minutes"), "seconds from 0 to 1"},
      {with_line("launch", "launch: -1e-6"), "seconds from 0 to 1"},
      {with_line("per_node", "per_node: 0"), "a whole number from 1"},
      {with_line("per_node", "per_node: 2.5"), "per_node must be"},
      {with_line("device", "device: tpu"), "one of cpu | cuda"},
      {good_cluster + "matrix_efficiency: 1.5\n", "above 0 and at most 1"},
      {good_cluster + "memmory: 80GB\n", "c.yaml:9: unknown key memmory; did you mean memory?"},
      {with_line("inside", "inside: {rate: 1e9, latncy: 0}"),
       "inside.latncy; did you mean latency?"},
      {with_line("matrix_rate", "matrix_rate: {float8: 2e15}"), "unknown key matrix_rate.float8"},
      {with_line("inside", "inside: 3"), "inside must be a group of keys"},
      {good_cluster + "measured: [[matmull, float32, 1, 1, 1, 1, 1, 2, 3, 4]]\n",
       "did you mean matmul?"},
      {good_cluster + "measured: [[matmul, float32, 1, 1, 1, 1, 1, 2, 3, 0]]\n",
       "measured must be"},
      {good_cluster + "measured: [[matmul, float32]]\n", "lists of kernel"},
      {good_cluster + "name: again\n", "c.yaml:9"},
      {"[1, 2]", "a cluster file is a group of keys"},
  };
  for (const auto& one : cases) {
    EXPECT_NE(cluster_refusal(one.text).find(one.says), std::string::npos)
        << cluster_refusal(one.text) << "\nshould say: " << one.says;
  }
}

TEST(ClusterFile, HasTheNodesThatItNames) {
  for (const char* const name : {"h100", "h200", "a100", "v100"}) {
    const Cluster cluster = find_cluster(name);
    EXPECT_EQ(cluster.device, DeviceType::cuda) << name;
    EXPECT_EQ(cluster.per_node, 8) << name;
    EXPECT_TRUE(cluster.memory && cluster.across && cluster.host_link) << name;
  }
  EXPECT_NE(testing::error_of([] { return find_cluster("h10"); }, ErrorCode::configuration)
                .find("did you mean h100?"),
            std::string::npos);
}

// In shipped files a comment with the source follows every number.
TEST(ClusterFile, NamesASourceForEachNumber) {
  for (const ShippedCluster& shipped : shipped_clusters()) {
    EXPECT_NE(shipped.text.find("data sheet"), std::string_view::npos) << shipped.name;
    std::istringstream lines{std::string(shipped.text)};
    for (std::string line; std::getline(lines, line);) {
      for (const char* const key : {"memory:", "memory_rate:", "matrix_efficiency:", "launch:",
                                    "attention_efficiency:", "  rate:", "  latency:"}) {
        if (line.starts_with(key)) {
          EXPECT_NE(line.find('#'), std::string::npos) << line;
        }
      }
    }
  }
}

TEST(ClusterFile, ReadsItsOwnFiles) {
  Cluster cluster = parse_cluster(good_cluster, "c.yaml");
  cluster.device = DeviceType::cpu;
  cluster.name = "a \"machine\": of two, # cores";
  cluster.disk_read = 1e9;
  cluster.disk_write = 2e9;
  MeasuredKernel measured;
  measured.work.kernel = KernelId::matmul;
  measured.work.m = 64;
  measured.work.n = 32;
  measured.work.k = 16;
  measured.work.operations = 65536;
  measured.work.bytes = 1024;
  measured.ranks = 2;
  measured.seconds = 1e-5;
  cluster.measured.push_back(measured);
  for (const DType dtype : {bfloat16, float16, float64, int32, int64, uint8, boolean}) {
    measured.work.kernel = KernelId::fill;
    measured.work.dtype = dtype;
    cluster.measured.push_back(measured);
  }
  const Cluster again = parse_cluster(cluster_text(cluster, {"a comment"}), "again.yaml");
  EXPECT_EQ(again.name, cluster.name);
  EXPECT_EQ(again.device, DeviceType::cpu);
  EXPECT_EQ(again.memory, cluster.memory);
  EXPECT_EQ(again.matrix_rate, cluster.matrix_rate);
  EXPECT_DOUBLE_EQ(*again.disk_write, 2e9);
  ASSERT_EQ(again.measured.size(), 8U);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(again.measured[i].work.dtype, cluster.measured[i].work.dtype) << i;
  }
  EXPECT_EQ(again.measured[0].work.n, 32);
  EXPECT_EQ(again.measured[0].ranks, 2);
  EXPECT_DOUBLE_EQ(again.measured[0].seconds, 1e-5);
}

TEST(ClusterFile, IsDocumentedKeyByKey) {
  const char* const folder = std::getenv("TESSERA_SOURCE_DIR");
  std::ifstream file(std::string(folder != nullptr ? folder : ".") + "/docs/cluster.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const ClusterKey& key : cluster_keys()) {
    const std::string last = key.name.substr(key.name.rfind('.') + 1);
    const bool whole = text.find('`' + key.name + '`') != std::string::npos;
    EXPECT_TRUE(whole || text.find("`." + last + '`') != std::string::npos) << key.name;
  }
}

}  // namespace
}  // namespace tessera::planner
