// Encodes payloads as bytes.
#include "comm/control/payloads.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/error.h"
#include "base/version.h"
#include "comm/control/wire.h"
#include "comm/watch/thread_activity.h"

namespace tessera::comm::control {
namespace {

std::string_view own_host() {
  thread_local char host[64]{};
  if (host[0] == '\0') TESSERA_SYSTEM(gethostname(host, sizeof(host) - 1));
  return host;
}

// A call travels without its name, which is its last member.
constexpr std::size_t bytes_before_name = offsetof(Call, name);

}  // namespace

Introduction introduction_of(const World& world) {
  Introduction introduction;
  introduction.rank = world.rank;
  introduction.size = world.size;
  introduction.pid = getpid();
  own_host().copy(introduction.host, sizeof(introduction.host) - 1);
  std::strncpy(introduction.library, version(), sizeof(introduction.library) - 1);
  return introduction;
}

std::string encode(const Introduction& introduction) {
  return {reinterpret_cast<const char*>(&introduction), sizeof(introduction)};
}

Introduction decode_introduction(std::string_view payload) {
  Reader reader(payload);
  auto introduction = reader.number<Introduction>();
  introduction.host[sizeof(introduction.host) - 1] = '\0';
  introduction.library[sizeof(introduction.library) - 1] = '\0';
  return introduction;
}

Meeting meeting_of_ranks(const World& world, const JobKey& key) {
  return meeting_of("ranks", world.run_id, key);
}

std::string name_of(const Introduction& introduction) {
  return fmt::format("rank {} (pid {} on {})", introduction.rank, introduction.pid,
                     introduction.host);
}

bool is_traced_here(const Introduction& introduction) {
  return own_host() == introduction.host && is_traced(introduction.pid);
}

std::string encode(const GroupOfRanks& group) {
  Writer writer;
  writer.number<std::uint64_t>(group.members.size());
  for (const std::int32_t member : group.members) writer.number(member);
  writer.text(group.name);
  return writer.bytes();
}

GroupOfRanks decode_group(std::string_view payload) {
  Reader reader(payload);
  GroupOfRanks group;
  const auto members = reader.number<std::uint64_t>();
  for (std::uint64_t i = 0; i < members; ++i) {
    group.members.push_back(reader.number<std::int32_t>());
  }
  group.name = reader.text();
  return group;
}

std::string encode(const Post& post, SentNames& names) {
  Writer writer;
  writer.raw({reinterpret_cast<const char*>(&post.call), bytes_before_name});
  writer.number<std::uint8_t>(post.wants_answer ? 1 : 0);
  const bool is_new = post.call.name[0] != '\0' && names.insert(post.call.name_hash).second;
  writer.text(is_new ? std::string_view(post.call.name.data()) : std::string_view());
  writer.text(post.message);
  return writer.bytes();
}

Post decode_post(std::string_view payload, KnownNames& names) {
  Reader reader(payload);
  Post post;
  const std::string_view call = reader.take(bytes_before_name);
  std::memcpy(static_cast<void*>(&post.call), call.data(), call.size());
  post.wants_answer = reader.number<std::uint8_t>() != 0;
  const std::string_view name = reader.text();
  if (!name.empty()) {
    std::array<char, 40>& known = names[post.call.name_hash];
    known.fill('\0');
    name.copy(known.data(), known.size() - 1);
  }
  if (const auto known = names.find(post.call.name_hash); known != names.end()) {
    post.call.name = known->second;
  }
  post.message = reader.text();
  return post;
}

std::string encode(const BeatOfRank& beat) {
  Writer writer;
  writer.number(beat.beat);
  writer.text(beat.wait);
  return writer.bytes();
}

BeatOfRank decode_beat(std::string_view payload) {
  Reader reader(payload);
  BeatOfRank beat;
  beat.beat = reader.number<Beat>();
  beat.wait = reader.text();
  return beat;
}

std::chrono::milliseconds beat_interval(std::chrono::milliseconds limit) {
  using std::chrono::milliseconds;
  return std::clamp(limit / 10, milliseconds(20), milliseconds(500));
}

}  // namespace tessera::comm::control
