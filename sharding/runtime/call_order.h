// The order in which a forward calls the units, learnt from the last forward, and the calls that it
// predicts. A wrong prediction costs time but changes no bit.
//
// Calls are recorded as they come. The backward shows which of them form one forward: it names the
// calls that it reaches. So a forward whose graph is dropped, or that an exception ended, has no
// effect, and a unit that is called twice has two places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace tessera {

class CallOrder {
 public:
  // A call of `unit` begins. `number` grows from call to call; `recorded`: a backward may follow.
  void begin_call(int unit, std::uint64_t number, bool recorded);
  // An exception ended a call: the next one begins a forward.
  void abandon() { next_ = 0; }
  // A backward that reached these calls has ended.
  struct Call {
    int unit;
    std::uint64_t number;
  };
  void end_backward(const std::vector<Call>& reached);

  // The units that are expected until the forward's end, the next one first.
  [[nodiscard]] std::vector<int>::const_iterator next() const { return known_.begin() + place(); }
  [[nodiscard]] bool is_known() const { return !known_.empty(); }
  [[nodiscard]] std::vector<int>::const_iterator end() const { return known_.end(); }

 private:
  [[nodiscard]] std::ptrdiff_t place() const { return static_cast<std::ptrdiff_t>(next_); }
  void follow(int unit);
  void learn_without_backward(int unit);

  std::vector<int> known_;     // the order of the last complete forward
  std::size_t next_ = 0;       // the place in known_ that is expected next
  std::deque<Call> recorded_;  // since the last backward
  std::vector<int> unrecorded_;
  bool trained_ = false;  // known_ comes from a backward
};

}  // namespace tessera
