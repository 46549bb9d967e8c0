// Scalars: values are restored; a scalar that is missing or of another type is refused by name.
#include "checkpoint/state/scalars.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "checkpoint/state/scalars_json.h"
#include "support/errors.h"
#include "support/expect_parts.h"

namespace tessera {
namespace {

using testing::expect_parts;

std::string refusal(const std::function<void()>& call) {
  return testing::error_of(call, ErrorCode::checkpoint);
}

TEST(Scalars, EveryTypeIsRestored) {
  constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  Scalars scalars;
  scalars.set("step", 7)
      .set("seed", largest)
      .set("lr", 3e-4)
      .set("done", true)
      .set("run", "a/b ~ü");
  EXPECT_EQ(scalars.get<std::int64_t>("step"), 7);
  EXPECT_EQ(scalars.get<std::int64_t>("seed"), largest);
  EXPECT_EQ(scalars.get<double>("lr"), 3e-4);
  EXPECT_EQ(scalars.get<double>("step"), 7.0);  // a whole number is also a floating-point number
  EXPECT_TRUE(scalars.get<bool>("done"));
  EXPECT_EQ(scalars.get<std::string>("run"), "a/b ~ü");
  scalars.set("step", 8);
  EXPECT_EQ(scalars.get<std::int64_t>("step"), 8);
}

TEST(Scalars, WholeNumbersKeepTheirRange) {
  constexpr std::uint64_t largest = std::numeric_limits<std::uint64_t>::max();
  Scalars scalars;
  scalars.set("fingerprint", largest).set("offset", -1);
  EXPECT_EQ(scalars.get<std::uint64_t>("fingerprint"), largest);
  EXPECT_EQ(scalars.get<std::int64_t>("offset"), -1);
  expect_parts(refusal([&] { (void)scalars.get<std::int64_t>("fingerprint"); }), {"'fingerprint'"});
  expect_parts(refusal([&] { (void)scalars.get<std::uint64_t>("offset"); }), {"'offset'", "-1"});
}

TEST(Scalars, GroupsAreNestedObjects) {
  Scalars scalars;
  scalars.set("position/samples", 640).set("position/steps", 10).set("position/0", 1);
  EXPECT_TRUE(scalars.contains("position"));
  EXPECT_FALSE(scalars.contains("position/epochs"));
  EXPECT_FALSE(scalars.contains("position/steps/more"));
  EXPECT_EQ(checkpoint::json_of(scalars).dump(),
            R"({"position":{"0":1,"samples":640,"steps":10}})");
}

TEST(Scalars, TheFallbackIsUsedOnlyForMissingNames) {
  Scalars scalars;
  scalars.set("shuffle", true);
  EXPECT_TRUE(scalars.get<bool>("shuffle", false));
  EXPECT_EQ(scalars.get<std::int64_t>("seed", 5), 5);
  expect_parts(refusal([&] { (void)scalars.get<std::int64_t>("shuffle", 5); }),
               {"'shuffle'", "true"});
}

TEST(Scalars, MissingAndOtherTypesAreNamed) {
  Scalars scalars;
  scalars.set("loss", 2.5).set("group/text", "x");
  expect_parts(refusal([&] { (void)scalars.get<double>("best"); }), {"no scalar 'best'"});
  expect_parts(refusal([&] { (void)scalars.get<std::int64_t>("loss"); }), {"'loss'", "2.5"});
  expect_parts(refusal([&] { (void)scalars.get<bool>("group/text"); }), {"'group/text'", "\"x\""});
  expect_parts(refusal([&] { (void)scalars.get<std::string>("group"); }), {"'group'"});
}

TEST(Scalars, ImpossibleNamesAreMisuse) {
  Scalars scalars;
  scalars.set("loss", 2.5);
  for (const char* name : {"", "/loss", "loss/", "a//b", "loss/more"}) {
    EXPECT_THROW(scalars.set(name, 1), std::logic_error) << name;
  }
  EXPECT_EQ(checkpoint::json_of(scalars).dump(), R"({"loss":2.5})");
}

TEST(Scalars, CopiesShareNothing) {
  Scalars one;
  one.set("step", 1);
  Scalars other = one;
  EXPECT_TRUE(other == one);
  other.set("step", 2);
  EXPECT_FALSE(other == one);
  one = other;
  EXPECT_EQ(one.get<std::int64_t>("step"), 2);
}

}  // namespace
}  // namespace tessera
