// The payloads of the control plane's frames.
//
// Every rank announces every collective, so such a frame is small: the members of a group and the
// names of its buffers are sent only once.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/control/door.h"
#include "comm/control/job_key.h"
#include "comm/world.h"

namespace tessera::comm::control {

// The first message of a rank, and the hub's answer, which describes rank 0.
struct Introduction {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t pid = 0;
  char host[64]{};
  char library[32]{};

  [[nodiscard]] std::string_view library_version() const { return library; }
};
Introduction introduction_of(const World& world);
std::string encode(const Introduction& introduction);
Introduction decode_introduction(std::string_view payload);
// The meeting of a job's ranks.
Meeting meeting_of_ranks(const World& world, const JobKey& key);
// "rank 1 (pid 4711 on node3)".
std::string name_of(const Introduction& introduction);
// True when a debugger is attached to the process, as far as this node can see.
bool is_traced_here(const Introduction& introduction);

// A group of ranks, before its first post.
struct GroupOfRanks {
  std::vector<std::int32_t> members;
  std::string name;
};
std::string encode(const GroupOfRanks& group);
GroupOfRanks decode_group(std::string_view payload);

// A rank's part of a round.
struct Post {
  Call call;
  bool wants_answer = false;  // the rank waits for the others' messages
  std::string message;
};
// Names that one side has sent, or that the other side knows, in a group, by their hashes.
using SentNames = std::set<std::uint64_t>;
using KnownNames = std::map<std::uint64_t, std::array<char, 40>>;
std::string encode(const Post& post, SentNames& names);
Post decode_post(std::string_view payload, KnownNames& names);

// A rank's heartbeat.
struct Beat {
  std::int64_t still = 0;             // milliseconds in which none of its threads moved
  std::int64_t device_still = 0;      // in which no expected collective on its device ended
  std::uint8_t waits_for_others = 0;  // all of its threads that work do
};
struct BeatOfRank {
  Beat beat;
  std::string wait;  // the wait of its own thread while it is still
};
std::string encode(const BeatOfRank& beat);
BeatOfRank decode_beat(std::string_view payload);

// The interval of heartbeats of both sides when silent ranks are named after `limit`.
std::chrono::milliseconds beat_interval(std::chrono::milliseconds limit);

}  // namespace tessera::comm::control
