// The control half of a communicator: small messages between the ranks, the end of the job when a
// rank gives up, and the state of a rank's threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::comm {

struct Call;

enum class Phase : std::uint8_t {
  setup,
  forward,
  backward,
  reduce,
  optimizer,
  checkpoint,
  metrics,
  other
};
std::string_view name_of(Phase phase);

// The purpose of a collective. The ranks compare it at every collective, together with the op,
// dtype and bytes.
struct Tag {
  std::uint64_t step = 0;
  std::uint32_t unit = 0;
  Phase phase = Phase::other;
  // The rate of the last optimizer step over the unit's parameters, so that ranks whose rates
  // differ meet in different calls. 0: there was no step.
  double learning_rate = 0;
};

// Activities of a rank's threads besides waiting in a collective.
enum class Activity : std::uint8_t {
  worker_begins,  // work for the rank on another thread than its own (a side stream's worker)
  worker_ends,
  rank_waits,  // the rank's own thread waits for such work
  rank_goes_on,
  outside_wait_begins,  // any thread waits for something outside of the job
  outside_wait_ends,
};

// An ordered set of ranks. Calls come from one thread at a time, in the same order on every rank,
// except abort() and note().
class ControlGroup {
 public:
  virtual ~ControlGroup() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;

  // For small messages (kilobytes). Returns every rank's message in rank order.
  std::vector<std::string> exchange(std::string_view message, Tag tag = {});
  // The root's message on every rank.
  std::string broadcast(std::string_view message, int root, Tag tag = {});
  void barrier(Tag tag = {});
  // The exchange of which the three above consist. When `call` has a root, the messages of the
  // other ranks are ignored.
  virtual std::vector<std::string> exchange(const Call& call, std::string_view message) = 0;

  // Tells every rank that this one gives up: their present and later calls throw Error(rank_failed)
  // with this rank's number and reason. Callable from any thread at any time, even during another
  // call. Never throws.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Distinguishes a deadlock from work: when every rank waits for another in some call and none has
  // moved for ConnectOptions::standstill_timeout, all of them throw Error(rank_failed) with the
  // calls that they wait in. A rank waits for others when its own thread (the one that connected,
  // or that run_local started) and all of its workers do. Threads that do not call note() are not
  // counted: no rank may depend, for that long, on the work of such a thread. After the same time
  // the error names a rank that others wait for when it waits for no other rank and its process was
  // stopped or its threads do not move (thread_activity.h).
  virtual void note(Activity activity) noexcept = 0;

  // Throws a logic_error when `root` of a broadcast is not a rank of the group.
  void check_root(int root) const;
};

}  // namespace tessera::comm
