// The links between hosts: every pair is measured once, and slow ones are named.
#include "bench/harness/network/host_links.h"

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "comm/world.h"

namespace tessera::bench {
namespace {

TEST(HostLinks, EveryPairIsMeasuredOnceForAnyNumberOfHosts) {
  for (const std::vector<int>& host_of_rank :
       {std::vector<int>{0}, {0, 0}, {0, 1}, {0, 0, 1, 2}, {0, 1, 2, 3}, {0, 1, 1, 2, 3, 4}}) {
    const int hosts = host_of_rank.back() + 1, ranks = static_cast<int>(host_of_rank.size());
    std::mutex mutex;
    comm::run_local(ranks, [&](const auto& communicator) {
      const std::vector<HostLink> links = measure_host_links(*communicator, host_of_rank);
      const std::scoped_lock lock(mutex);
      ASSERT_EQ(links.size(), static_cast<std::size_t>(hosts * (hosts - 1) / 2));
      auto link = links.begin();
      for (int first = 0; first < hosts; ++first) {
        for (int second = first + 1; second < hosts; ++second, ++link) {
          EXPECT_EQ(link->first, first);
          EXPECT_EQ(link->second, second);
          EXPECT_GT(link->latency_s, 0);
          EXPECT_GT(link->there, 1e6);
          EXPECT_GT(link->back, 1e6);
          EXPECT_TRUE(std::isfinite(link->there) && std::isfinite(link->back));
        }
      }
    });
  }
}

TEST(HostLinks, SlowOnesAreNamed) {
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  std::vector<HostLink> links;
  for (int first = 0; first < 4; ++first) {
    for (int second = first + 1; second < 4; ++second) {
      links.push_back({first, second, 1e-4, 1e9, 0.9e9});
    }
  }
  EXPECT_TRUE(slow_links(links, names, {}).empty());
  EXPECT_EQ(slow_links(links, names, Link{.rate = 2e9, .latency = 1e-4}).size(), 10u);
  links[1].back = 0.5e9;      // a - c
  links[4].latency_s = 1e-3;  // b - d
  const std::vector<std::string> slow = slow_links(links, names, {});
  ASSERT_EQ(slow.size(), 2u);
  EXPECT_EQ(slow[0], "a - c: 0.50 of the median rate, 1.00 of the latency");
  EXPECT_EQ(slow[1], "b - d: 0.90 of the median rate, 10.00 of the latency");
  for (HostLink& link : links) {
    if (link.second == 3) link.there = 1e8;
  }
  EXPECT_EQ(slow_links(links, names, {}).back(), "d: all its links are slow");
  EXPECT_TRUE(slow_links({}, {"a"}, {}).empty());
}

}  // namespace
}  // namespace tessera::bench
