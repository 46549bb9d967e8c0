// `tessera plan --calibrate` writes a cluster file that plans can use. bench/plan_against_runs.py
// measures the accuracy of the times, on a quiet machine.
#include "planner/cluster_file.h"
#include "tests/cli/training_testing.h"

namespace tessera::planner {
namespace {

TEST(Calibrate, WritesAClusterThatPlansCanUse) {
  const testing::TrainingFolder folder;
  const std::string file = folder.path("here.yaml");
  const testing::Ended measured = testing::run_program({"plan", "--calibrate", file});
  ASSERT_EQ(measured.code, 0) << measured.err;
  const Cluster cluster = find_cluster(file);
  EXPECT_EQ(cluster.device, DeviceType::cpu);
  EXPECT_GT(cluster.measured.size(), 100U);
  for (const DType dtype : {float32, bfloat16, float16}) {  // the dtypes of mixed_precision
    ASSERT_TRUE(cluster.matrix_rate.contains(dtype)) << name_of(dtype);
    EXPECT_GT(cluster.matrix_rate.at(dtype), 1e8) << name_of(dtype);
  }
  EXPECT_GT(cluster.inside.rate, 1e6);
  EXPECT_TRUE(cluster.disk_read && cluster.disk_write);
  const std::string json = folder.path("plan.json");
  const testing::Ended planned =
      testing::run_program({"plan", testing::example_recipe(), "--cluster", file, "--world-size",
                            "2", "--strategy", "all", "--json", json});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const auto plan = nlohmann::json::parse(testing::read_text(json));
  for (const nlohmann::json& row : plan["rows"]) {
    EXPECT_GT(row["predicted"]["step_s"].get<double>(), 0) << row;
    EXPECT_LT(row["predicted"]["mfu"].get<double>(), 1.5) << row;
  }
}

}  // namespace
}  // namespace tessera::planner
