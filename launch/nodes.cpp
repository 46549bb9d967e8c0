// The messages between launchers while ranks run.
#include "launch/nodes.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "comm/timeout.h"

namespace tessera::launcher {
namespace {

using comm::control::Frame;
using comm::control::FrameKind;
using Json = nlohmann::json;

constexpr std::chrono::milliseconds beat_interval{500};
// The ranks report a silent rank first: they know in which call it was.
constexpr std::chrono::milliseconds ranks_lead{3'000};
constexpr std::chrono::milliseconds longest_farewell{2'000};

std::string dumped(const Json& message) {
  return message.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json as_json(const char* kind, const LaunchReport& report) {
  return {{"kind", kind},
          {"code", report.code},
          {"weight", report.weight},
          {"worth_restarting", report.worth_restarting},
          {"line", report.line}};
}

LaunchReport from_json(const Json& message) {
  return {.code = message.value("code", 1),
          .weight = message.value("weight", 0),
          .worth_restarting = message.value("worth_restarting", false),
          .line = message.value("line", std::string())};
}

}  // namespace

LaunchNodes::LaunchNodes(const LaunchOptions& options, const LaunchPlan& plan)
    : options_(options),
      silence_(comm::standstill_timeout() + ranks_lead),
      plan_(plan),
      clock_(2 * beat_interval) {}

// Node 0's last message is read before its end of the connection closes.
LaunchNodes::~LaunchNodes() {
  if (!leads()) return;
  const auto deadline = Clock::now() + longest_farewell;
  for (Peer& peer : peers_) {
    if (peer.stream.open()) ::shutdown(peer.stream.socket(), SHUT_WR);
  }
  for (Peer& peer : peers_) {
    try {
      while (peer.stream.open() && !peer.stream.ended() && Clock::now() < deadline) {
        pollfd wanted{peer.stream.socket(), POLLIN, 0};
        ::poll(&wanted, 1, 100);
        (void)peer.stream.receive();
      }
    } catch (const Error&) {
      // The peer has closed the connection.
    }
  }
}

std::vector<pollfd> LaunchNodes::watched() const {
  std::vector<pollfd> watched;
  for (const Peer& peer : peers_) {
    if (!peer.stream.open()) continue;
    const int wanted = peer.stream.has_unsent() ? POLLIN | POLLOUT : POLLIN;
    watched.push_back({peer.stream.socket(), static_cast<short>(wanted), 0});
  }
  return watched;
}

void LaunchNodes::serve() {
  const std::chrono::nanoseconds now = clock_.look();
  const bool beats = now - beat_at_ >= beat_interval;
  if (beats) beat_at_ = now;
  for (Peer& peer : peers_) {
    if (!peer.stream.open()) continue;
    try {
      if (beats) peer.stream.send({.kind = FrameKind::beat}, {});
      (void)peer.stream.flush();
      receive_from(peer);
    } catch (const std::exception& error) {  // also exceptions of the JSON library
      lose(peer, fmt::format("is gone: {}", error.what()), Weight::failure);
      continue;
    }
    // If ranks have failed already, they have reported what they know.
    const bool failed = gravest_ && gravest_->weight != Weight::none;
    const std::chrono::milliseconds limit = failed ? silence_ - ranks_lead : silence_;
    if (peer.stream.open() && now - peer.heard >= limit) {
      lose(peer,
           fmt::format("has given no sign of life for {:.1f} s: it was stopped, or its host cannot "
                       "be reached",
                       std::chrono::duration<double>(limit).count()),
           Weight::consequence);
    }
  }
  decide();
}

void LaunchNodes::receive_from(Peer& peer) {
  if (peer.stream.receive()) peer.heard = clock_.time();
  // Messages after the end of an attempt belong to the next one.
  while (!verdict_ || !verdict_->again) {
    const std::optional<Frame> frame = peer.stream.next();
    if (!frame) break;
    if (frame->header.kind == FrameKind::post) take(peer, frame->payload);
  }
  if (!peer.stream.ended()) return;
  if (verdict_ && !verdict_->again) {
    peer.stream.close();
  } else {
    lose(peer, "ended without a message: it or its host was killed", Weight::failure);
  }
}

void LaunchNodes::take(Peer& peer, const std::string& text) {
  const Json message = Json::parse(text, nullptr, false);
  const std::string kind = message.is_object() ? message.value("kind", "") : "";
  TESSERA_CHECK(!kind.empty(), ErrorCode::rank_failed, "a message is not valid");
  if (kind == "signal") {
    signals_.push_back(message.value("signal", SIGTERM));
    stopped_ = true;
    if (leads()) send_to_all(text, peer.node);
  } else if (kind == "plan") {
    plan_.world = message.value("world", 1);
    plan_.first_rank = message.value("first_rank", 0);
    plan_.max_restarts = message.value("max_restarts", 0);
    plan_.run_id = message.value("run_id", "");
    plan_.launch_id = message.value("launch_id", "");
    met_ = true;
  } else if (kind == "verdict") {
    verdict_ = Verdict{from_json(message), message.value("again", false)};
  } else if (leads()) {
    take_from_member(peer, kind, from_json(message));
  } else if (kind == "failed") {
    if (!elsewhere_) elsewhere_ = from_json(message);
    add(from_json(message));
  }
}

void LaunchNodes::take_from_member(Peer& peer, const std::string& kind,
                                   const LaunchReport& report) {
  add(report);
  if (kind == "failed") {
    if (!elsewhere_) elsewhere_ = report;
    send_to_all(dumped(as_json("failed", report)), peer.node);
  } else if (kind == "ended") {
    peer.ended = true;
  }
}

// A peer that has not been met is not lost: it may come again.
void LaunchNodes::lose(Peer& peer, const std::string& how, int weight) {
  peer.stream.close();
  if (!met_) return;
  lost_ = peer.ended = true;
  const LaunchReport report{
      .code = static_cast<int>(ErrorCode::rank_failed),
      .weight = weight,
      .line = fmt::format("error: the launcher of {}, which has {} {}, {}; the other ranks were "
                          "stopped",
                          peer.name, peer.ranks == 1 ? "rank" : "ranks",
                          peer.ranks == 1 ? fmt::format("{}", peer.first_rank)
                                          : fmt::format("{} to {}", peer.first_rank,
                                                        peer.first_rank + peer.ranks - 1),
                          how)};
  if (!elsewhere_) elsewhere_ = report;
  add(report);
  if (leads()) send_to_all(dumped(as_json("failed", report)));
}

void LaunchNodes::add(const LaunchReport& report) {
  if (!gravest_ || report.weight > gravest_->weight) gravest_ = report;
}

void LaunchNodes::tell_failure(const LaunchReport& report) {
  add(report);
  send_to_all(dumped(as_json("failed", report)));
}

void LaunchNodes::tell_end(const LaunchReport& report) {
  own_ended_ = true;
  add(report);
  if (!leads()) send_to_all(dumped(as_json("ended", report)));
}

void LaunchNodes::tell_signal(int signal) {
  stopped_ = true;
  send_to_all(dumped({{"kind", "signal"}, {"signal", signal}}));
}

std::optional<int> LaunchNodes::take_signal() {
  if (signals_.empty()) return std::nullopt;
  const int signal = signals_.front();
  signals_.erase(signals_.begin());
  return signal;
}

// Node 0 decides when all nodes' ranks have ended. Another node decides for itself when node 0 is
// gone. A job is not started again when a node is missing or when the user has stopped it.
void LaunchNodes::decide() {
  if (!met_ || verdict_ || !own_ended_) return;
  if (!std::all_of(peers_.begin(), peers_.end(), [](const Peer& one) { return one.ended; })) return;
  const bool again = leads() && !lost_ && !stopped_ && gravest_->weight != Weight::none &&
                     gravest_->worth_restarting && attempt_ < plan_.max_restarts;
  verdict_ = Verdict{*gravest_, again};
  if (!leads()) return;
  Json message = as_json("verdict", *gravest_);
  message["again"] = again;
  send_to_all(dumped(message));
}

void LaunchNodes::begin_next_attempt() {
  ++attempt_;
  for (Peer& peer : peers_) peer.ended = false;
  own_ended_ = false;
  elsewhere_.reset();
  gravest_.reset();
  verdict_.reset();
}

void LaunchNodes::send(Peer& peer, const std::string& message) {
  try {
    peer.stream.send({.kind = FrameKind::post}, message);
  } catch (const Error&) {
    // The next look at the connection finds the same error.
  }
}

void LaunchNodes::send_to_all(const std::string& message, int but_node) {
  for (Peer& peer : peers_) {
    if (peer.node != but_node && peer.stream.open()) send(peer, message);
  }
}

}  // namespace tessera::launcher
