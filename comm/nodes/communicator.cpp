// Setup, waiting, and what the ranks tell each other before the data of a collective.
#include "comm/nodes/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/error.h"
#include "base/home_process.h"
#include "comm/outcome.h"
#include "comm/watch/running_clock.h"

namespace tessera::comm {
namespace {

// A wait for messages checks this often whether the job has failed.
constexpr std::chrono::milliseconds failure_interval{20};
// The control plane may take this long to report why a connection broke: its own connections break
// at the same moment, or heartbeats are missing.
constexpr std::chrono::milliseconds time_for_cause{2000};

std::uint64_t random_number() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}

// A hash of every field in which calls may differ.
std::uint64_t fingerprint_of(const Call& call, std::uint64_t number) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a, by words
  for (const std::uint64_t value :
       {number, static_cast<std::uint64_t>(call.op), static_cast<std::uint64_t>(call.phase),
        static_cast<std::uint64_t>(call.in_dtype), static_cast<std::uint64_t>(call.out_dtype),
        std::uint64_t{call.accumulate}, static_cast<std::uint64_t>(call.sharing),
        std::uint64_t{call.unit}, call.step, call.bytes, call.buffer,
        static_cast<std::uint64_t>(call.group), static_cast<std::uint64_t>(call.root),
        std::uint64_t{call.scale_bits}, call.name_hash}) {
    hash = (hash ^ value) * 1099511628211u;
    hash ^= hash >> 29;
  }
  return hash;
}

// The state that a thread which waits for messages shows to the watches over ranks: at work while
// bytes arrive, however slow the network is; waiting for others when none have arrived for long.
class Idleness {
 public:
  explicit Idleness(StandstillWatch& watch) : watch_(watch) {}
  ~Idleness() { work(); }
  Idleness(const Idleness&) = delete;
  Idleness& operator=(const Idleness&) = delete;

  [[nodiscard]] bool begun() const { return state_ != State::works; }
  void sleep() {
    if (begun()) return;
    watch_.begin_outside();
    state_ = State::sleeps;
  }
  void wait(const Call& call) {
    if (state_ == State::waits) return;
    work();
    watch_.begin_remote();
    watch_.begin_wait();
    watch_.set_call(describe(call));
    state_ = State::waits;
  }
  void work() {
    if (state_ == State::sleeps) watch_.end_outside();
    if (state_ == State::waits) {
      watch_.end_wait();
      watch_.end_remote();
    }
    state_ = State::works;
  }

 private:
  enum class State : std::uint8_t { works, sleeps, waits };
  StandstillWatch& watch_;
  State state_ = State::works;
};

std::vector<int> nodes_of(const NodesJob& job, const std::vector<int>& world_ranks) {
  std::vector<int> nodes;
  for (const int rank : world_ranks) nodes.push_back(job.member(rank).node);
  return nodes;
}

}  // namespace

NodesCommunicator::NodesCommunicator(std::shared_ptr<NodesJob> job, control::HubGroup group,
                                     std::vector<int> world_ranks,
                                     std::shared_ptr<SharedCommunicator> local)
    : job_(std::move(job)),
      group_(std::move(group), local),
      world_ranks_(std::move(world_ranks)),
      local_(std::move(local)),
      topology_(nodes_of(*job_, world_ranks_), group_.rank()) {
  for (const int peer : topology_.peers()) peers_.push_back({.rank = peer});
  Call call(Op::duplicate, {.phase = Phase::setup});
  call.set_name(group_.name());
  try {
    // The first rank chooses the channel's number.
    control::Writer writer;
    writer.number(random_number());
    const std::vector<std::string> numbers = group_.exchange(call, writer.bytes());
    channel_ = control::Reader(numbers.front()).number<std::uint64_t>();
    transport_ = job_->open(channel_, topology_.peers(), world_ranks_);
  } catch (const Error& error) {
    local_->abort(error.what());
    throw;
  }
}

NodesCommunicator::~NodesCommunicator() = default;

SharedBuffer& NodesCommunicator::own(Buffer& buffer, Op op) const {
  auto* shared = dynamic_cast<SharedBuffer*>(&buffer);
  TESSERA_REQUIRE(shared != nullptr && &shared->group() == &local_->group(),
                  "{} on '{}': the buffer comes from another communicator", name_of(op),
                  group_.name());
  return *shared;
}

// Either all ranks get the buffer or none does.
std::shared_ptr<Buffer> NodesCommunicator::allocate(std::string_view name, std::size_t bytes,
                                                    Sharing sharing) {
  Call call(Op::allocate, {.phase = Phase::setup});
  call.bytes = bytes;
  call.buffer = ++buffers_;
  call.sharing = sharing;
  call.set_name(name);
  std::shared_ptr<Buffer> buffer;
  std::string outcome = encode_success(0);
  job_->control().check(call);
  try {
    buffer = local_->allocate(name, bytes, sharing);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::rank_failed) throw;
    outcome = encode_error(error);
  }
  for (const std::string& result : group_.exchange(call, outcome)) (void)decode_result(result);
  return buffer;
}

void NodesCommunicator::acquire(Buffer& buffer, Tag tag) {
  SharedBuffer& shared = own(buffer, Op::acquire);
  job_->control().check(shared.call(Op::acquire, tag));
  shared.acquire(tag);
}

void NodesCommunicator::collective(const Call& call, const std::function<void()>& body) {
  group_.announce(call);
  ++collectives_;
  run(call, body);
}

void NodesCommunicator::run(const Call& call, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    job_->give_up();
    job_->control().check_soon(call, time_for_cause);
    local_->abort(error.what());
    throw;
  } catch (const std::exception& error) {  // this rank's own failure: out of memory
    job_->give_up();
    local_->abort(fmt::format("{}: {}", describe(call), error.what()));
    throw;
  }
}

void NodesCommunicator::wait_for(Transport& transport, const Call& call,
                                 const std::function<bool(bool& busy)>& done) {
  StandstillWatch& watch = job_->control().watch();
  Idleness idleness(watch);
  RunningClock clock(std::chrono::milliseconds(100));
  std::chrono::nanoseconds moved_at{0};
  for (;;) {
    bool busy = false;
    if (done(busy)) return;
    const auto patience =
        idleness.begun() && !busy ? failure_interval : std::chrono::milliseconds(0);
    if (transport.move(patience) || busy) {
      moved_at = clock.look();
      idleness.work();
      continue;
    }
    idleness.sleep();
    job_->control().check(call);
    local_->group().check(call);
    const std::chrono::nanoseconds still = clock.look() - moved_at;
    if (still > watch.limit()) idleness.wait(call);
    if (still > job_->timeout()) fail_late(transport, call);
  }
}

void NodesCommunicator::move_until(const Call& call, const std::function<bool(bool& busy)>& done) {
  wait_for(*transport_, call, [&](bool& busy) {
    compare_headers(call);
    return done(busy);
  });
}

void NodesCommunicator::fail_late(const Transport& transport, const Call& call) const {
  std::string names;
  for (const int peer : transport.waits_for()) {
    const int number = world_ranks_[static_cast<std::size_t>(peer)];
    names += (names.empty() ? "" : ", ") + job_->member(number).name;
  }
  fail(ErrorCode::rank_failed,
       "rank {} in {} on '{}': nothing has come from or gone to {} for {:.1f} s "
       "(TESSERA_COMM_TIMEOUT)",
       job_->control().rank(), describe(call), group_.name(), names,
       std::chrono::duration<double>(job_->timeout()).count());
}

Transport::Ticket NodesCommunicator::send_data(int peer, const std::byte* from, std::size_t bytes) {
  job_->count_sent(bytes);
  return transport_->send(peer, from, bytes);
}

NodesCommunicator::Header NodesCommunicator::header_of(const Call& call, std::uint64_t number) {
  return {.call = fingerprint_of(call, number), .ranges = 0};
}

// Before it no message is under way; all data of the call follows it.
void NodesCommunicator::exchange_headers(const Call& call, std::uint64_t ranges) {
  own_header_ = header_of(call, collectives_);
  own_header_.ranges = ranges;
  for (Peer& peer : peers_) {
    transport_->send(peer.rank, reinterpret_cast<const std::byte*>(&own_header_),
                     sizeof(own_header_));
    peer.arrives = transport_->receive(peer.rank, reinterpret_cast<std::byte*>(&peer.header),
                                       sizeof(peer.header));
    peer.is_compared = false;
  }
}

void NodesCommunicator::compare_headers(const Call& call) {
  for (Peer& peer : peers_) {
    if (peer.is_compared || !transport_->received(peer.rank, peer.arrives)) continue;
    peer.is_compared = true;
    if (peer.header.call == own_header_.call) continue;
    job_->control().check_soon(call, job_->timeout());  // it knows how the calls differ
    fail(ErrorCode::rank_failed, "rank {} in {}: {} is in another call", job_->control().rank(),
         describe(call), job_->member(world_ranks_[static_cast<std::size_t>(peer.rank)]).name);
  }
}

void NodesCommunicator::exchange_ranges(const std::vector<ReducedRange>& mine, const Call& call) {
  own_ranges_.clear();
  for (const ReducedRange& range : mine) own_ranges_.push_back({range.first, range.count});
  exchange_headers(call, own_ranges_.size());
  if (!own_ranges_.empty()) {
    for (const Peer& peer : peers_) {
      transport_->send(peer.rank, reinterpret_cast<const std::byte*>(own_ranges_.data()),
                       own_ranges_.size() * sizeof(Range));
    }
  }
  (void)transport_->move(std::chrono::milliseconds(0));
  meet(call);
  move_until(call, [this](bool&) {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const Peer& peer) { return peer.is_compared; });
  });
  for (Peer& peer : peers_) {
    peer.ranges.resize(peer.header.ranges);
    if (peer.ranges.empty()) continue;
    transport_->receive(peer.rank, reinterpret_cast<std::byte*>(peer.ranges.data()),
                        peer.ranges.size() * sizeof(Range));
  }
  move_until(call, [this](bool&) { return transport_->idle(); });
}

const std::vector<NodesCommunicator::Range>& NodesCommunicator::ranges_of(int client) const {
  const auto found = std::find_if(peers_.begin(), peers_.end(),
                                  [client](const Peer& peer) { return peer.rank == client; });
  return found->ranges;
}

std::shared_ptr<Communicator> NodesCommunicator::split(int color, int key, std::string_view name) {
  control::HubGroup group = group_.split(color, key, name);
  auto local = std::static_pointer_cast<SharedCommunicator>(local_->split(color, key, name));
  std::vector<int> numbers(group.members().begin(), group.members().end());
  if (local->size() == group.size()) return local;
  return make_shared_at_home<NodesCommunicator>(job_, std::move(group), std::move(numbers),
                                                std::move(local));
}

std::shared_ptr<Communicator> NodesCommunicator::duplicate(std::string_view name) {
  return split(0, rank(), name);
}

}  // namespace tessera::comm
