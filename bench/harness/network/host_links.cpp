#include "bench/harness/network/host_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/error.h"
#include "bench/harness/median.h"
#include "comm/exchange_values.h"

namespace tessera::bench {
namespace {

constexpr comm::Tag links_tag{0, 0, comm::Phase::metrics};
constexpr int warm_up = 5, round_trips = 51;
constexpr std::size_t probe_bytes = std::size_t{1} << 20, message_bytes = std::size_t{4} << 20;
constexpr double measured_s = 0.25;  // of a direction

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// One end of a pair; both call the same functions in turn.
class End {
 public:
  End(comm::Communicator& communicator, int peer)
      : communicator_(communicator), peer_(peer), memory_(message_bytes) {}

  // Half of the median round trip, at the end that calls it with `asks`.
  double latency(bool asks) {
    std::vector<double> trips;
    for (int i = 0; i < warm_up + round_trips; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (asks) send(8);
      receive(8);
      if (!asks) send(8);
      if (i >= warm_up) trips.push_back(seconds_since(begin));
    }
    return median(trips) / 2;
  }

  // Bytes a second towards the peer, which calls take(). It acknowledges the last message.
  double give(double latency_s) {
    const double probe_s = time_of(1, probe_bytes, latency_s);
    const double messages = measured_s / probe_s * static_cast<double>(probe_bytes) /
                            static_cast<double>(message_bytes);
    const auto count = static_cast<std::int64_t>(std::clamp(messages, 1.0, 4096.0));
    communicator_.send(&count, sizeof(count), peer_, links_tag);
    return static_cast<double>(count) * static_cast<double>(message_bytes) /
           time_of(count, message_bytes, latency_s);
  }
  void take() {
    take_messages(1, probe_bytes);
    std::int64_t count = 0;
    communicator_.receive(&count, sizeof(count), peer_, links_tag);
    take_messages(count, message_bytes);
  }

  void send(std::size_t bytes) { communicator_.send(memory_.data(), bytes, peer_, links_tag); }
  void receive(std::size_t bytes) {
    communicator_.receive(memory_.data(), bytes, peer_, links_tag);
  }

 private:
  double time_of(std::int64_t messages, std::size_t bytes, double latency_s) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < messages; ++i) send(bytes);
    receive(1);
    return std::max(seconds_since(begin) - latency_s, 1e-9);
  }
  void take_messages(std::int64_t messages, std::size_t bytes) {
    for (std::int64_t i = 0; i < messages; ++i) receive(bytes);
    send(1);
  }

  comm::Communicator& communicator_;
  int peer_;
  std::vector<std::byte> memory_;
};

// The first rank of each host.
std::vector<int> leaders_of(const std::vector<int>& host_of_rank) {
  std::vector<int> leaders;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const auto host = static_cast<std::size_t>(host_of_rank[rank]);
    if (leaders.size() <= host) leaders.resize(host + 1, -1);
    if (leaders[host] < 0) leaders[host] = static_cast<int>(rank);
  }
  TESSERA_REQUIRE(std::find(leaders.begin(), leaders.end(), -1) == leaders.end(),
                  "measure_host_links: the numbers of {} hosts have a gap", leaders.size());
  return leaders;
}

// The host's partner in a round, or -1. All hosts but the last stand in a ring that turns by one
// place a round; the last one is the partner of the host at the top.
int partner_in(int round, int host, int hosts) {
  const int places = hosts + hosts % 2, ring = places - 1;
  const int top = round % ring;
  int partner = 0;
  if (host == places - 1) {
    partner = top;
  } else {
    partner = host == top ? places - 1 : ((2 * top - host) % ring + ring) % ring;
  }
  return partner < hosts ? partner : -1;
}

HostLink measure(comm::Communicator& communicator, HostLink link, bool is_first, int peer) {
  End end(communicator, peer);
  link.latency_s = end.latency(is_first);
  if (is_first) {
    link.there = end.give(link.latency_s);
    end.take();
    communicator.receive(&link.back, sizeof(link.back), peer, links_tag);
  } else {
    end.take();
    const double rate = end.give(link.latency_s);
    communicator.send(&rate, sizeof(rate), peer, links_tag);
  }
  return link;
}

}  // namespace

std::vector<HostLink> measure_host_links(comm::Communicator& communicator,
                                         const std::vector<int>& host_of_rank) {
  const std::vector<int> leaders = leaders_of(host_of_rank);
  const int hosts = static_cast<int>(leaders.size()), rounds = hosts + hosts % 2 - 1;
  const int own = host_of_rank.at(static_cast<std::size_t>(communicator.rank()));
  const bool leads = leaders[static_cast<std::size_t>(own)] == communicator.rank();
  std::vector<HostLink> links;
  for (int round = 0; round < rounds; ++round) {
    std::vector<HostLink> mine;
    const int partner = partner_in(round, own, hosts);
    if (leads && partner >= 0) {
      const HostLink link{.first = std::min(own, partner), .second = std::max(own, partner)};
      const HostLink measured =
          measure(communicator, link, own < partner, leaders[static_cast<std::size_t>(partner)]);
      if (own < partner) mine.push_back(measured);
    }
    for (const std::vector<HostLink>& some :
         comm::exchange_arrays(communicator, std::span<const HostLink>(mine), links_tag)) {
      links.insert(links.end(), some.begin(), some.end());
    }
  }
  std::sort(links.begin(), links.end(), [](const HostLink& a, const HostLink& b) {
    return std::pair(a.first, a.second) < std::pair(b.first, b.second);
  });
  return links;
}

std::vector<std::string> slow_links(const std::vector<HostLink>& links,
                                    const std::vector<std::string>& host_names,
                                    const std::optional<Link>& link) {
  std::vector<double> rates, latencies;
  for (const HostLink& one : links) {
    rates.insert(rates.end(), {one.there, one.back});
    latencies.push_back(one.latency_s);
  }
  if (links.empty()) return {};
  const double rate = link ? link->rate : median(rates);
  const double latency = link ? link->latency : median(latencies);
  const auto name = [&](int host) { return host_names.at(static_cast<std::size_t>(host)); };
  std::vector<std::string> slow;
  std::vector<int> of_host(host_names.size(), 0);
  for (const HostLink& one : links) {
    const double share = std::min(one.there, one.back) / rate;
    const bool is_late = one.latency_s > 2 * latency + 20e-6;
    if (share >= usual_share && !is_late) continue;
    ++of_host.at(static_cast<std::size_t>(one.first));
    ++of_host.at(static_cast<std::size_t>(one.second));
    slow.push_back(fmt::format("{} - {}: {:.2f} of the {} rate, {:.2f} of the latency",
                               name(one.first), name(one.second), share,
                               link ? "cluster's" : "median", one.latency_s / latency));
  }
  const int others = static_cast<int>(host_names.size()) - 1;
  for (std::size_t host = 0; host < of_host.size() && others > 1; ++host) {
    if (of_host[host] == others) slow.push_back(host_names[host] + ": all its links are slow");
  }
  return slow;
}

}  // namespace tessera::bench
