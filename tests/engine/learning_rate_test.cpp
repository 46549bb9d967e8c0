// Learning-rate schedules: values known by hand, and what holds for every row of the table.
#include "engine/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string_view>

namespace tessera {
namespace {

using optim::Schedule;
using optim::ScheduleKind;
using optim::ScheduleRow;

// Warm-up of 10 steps, stable until 50 (wsd), decay until 110, three cycles, power 2.
Schedule schedule_of(ScheduleKind kind) {
  return {.kind = kind,
          .peak = 1,
          .minimum = 0.2,
          .warmup_steps = 10,
          .decay_steps = 110,
          .decay_start = 50,
          .power = 2,
          .cycles = 4};
}

TEST(LearningRate, WarmsUpToAConstant) {
  const Schedule constant{.kind = ScheduleKind::constant, .peak = 2, .warmup_steps = 4};
  EXPECT_DOUBLE_EQ(constant.at(0), 0.5);
  EXPECT_DOUBLE_EQ(constant.at(3), 2);
  EXPECT_DOUBLE_EQ(constant.at(1000), 2);
}

TEST(LearningRate, EveryDecayBeginsAtThePeakAndEndsAtTheMinimum) {
  std::set<std::string_view> names;
  for (const ScheduleRow& row : optim::schedule_rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(&optim::row_of(row.kind), &row);
    const Schedule schedule = schedule_of(row.kind);
    for (int step = 0; step < 10; ++step) EXPECT_DOUBLE_EQ(schedule.at(step), (step + 1) / 10.0);
    EXPECT_EQ(schedule.at(10), 1) << row.name;
    if (row.share == nullptr) continue;
    const double in_the_middle = schedule.at(row.has_stable_phase ? 80 : 40);
    EXPECT_LT(in_the_middle, 1) << row.name;
    EXPECT_GT(in_the_middle, 0.2) << row.name;
    EXPECT_DOUBLE_EQ(schedule.at(110), 0.2) << row.name;
    EXPECT_DOUBLE_EQ(schedule.at(5000), 0.2) << row.name;
    if (!row.has_stable_phase) continue;
    for (int step = 10; step <= 50; ++step) EXPECT_EQ(schedule.at(step), 1) << row.name;
    EXPECT_LT(schedule.at(51), 1) << row.name;
  }
  EXPECT_EQ(names.size(), 8u);
}

TEST(LearningRate, DecaysByItsFormula) {
  EXPECT_DOUBLE_EQ(schedule_of(ScheduleKind::linear).at(60), 0.6);
  EXPECT_NEAR(schedule_of(ScheduleKind::cosine).at(35), 0.2 + 0.4 * (1 + std::sqrt(0.5)), 1e-15);
  EXPECT_DOUBLE_EQ(schedule_of(ScheduleKind::polynomial).at(60), 0.2 + 0.8 * 0.25);
  EXPECT_DOUBLE_EQ(schedule_of(ScheduleKind::wsd_linear).at(65), 0.8);
  EXPECT_DOUBLE_EQ(schedule_of(ScheduleKind::wsd_cosine).at(80), 0.6);
  EXPECT_DOUBLE_EQ(schedule_of(ScheduleKind::wsd_1_sqrt).at(65), 0.6);
}

// Four cycles of 25 steps.
TEST(LearningRate, RestartsAtThePeak) {
  const Schedule schedule = schedule_of(ScheduleKind::cosine_with_restarts);
  for (const int begin : {10, 35, 60, 85}) {
    EXPECT_DOUBLE_EQ(schedule.at(begin), 1) << begin;
    EXPECT_NEAR(schedule.at(begin + 5), 0.6 + 0.4 * std::cos(std::acos(-1.0) / 5), 1e-14) << begin;
    EXPECT_LT(schedule.at(begin + 24), 0.21) << begin;
  }
}

// A decay that is shorter than the warm-up never begins.
TEST(LearningRate, StaysAtThePeakWithoutADecay) {
  const Schedule schedule{
      .kind = ScheduleKind::linear, .peak = 1, .warmup_steps = 10, .decay_steps = 10};
  EXPECT_EQ(schedule.at(10), 1);
  EXPECT_EQ(schedule.at(100), 1);
}

}  // namespace
}  // namespace tessera
