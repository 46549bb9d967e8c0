// The order in which a forward calls the units, learnt from the last one, and what comes next by
// it. A wrong guess costs time, never a bit.
//
// Calls are recorded as they come. Which of them make one forward, the backward tells: it names the
// calls that it reaches. A forward whose graph is dropped leaves no trace so, nor does one that an
// exception ended, and a unit that is called twice has two places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace tessera {

class CallOrder {
 public:
  // A call of `unit` begins. `number` grows from call to call; `recorded`: a backward may come.
  void begin_call(int unit, std::uint64_t number, bool recorded);
  // An exception ended a call: the next one begins a forward.
  void abandon() { next_ = 0; }
  // A backward is over that reached these calls.
  struct Call {
    int unit;
    std::uint64_t number;
  };
  void end_backward(const std::vector<Call>& reached);

  // The units that are expected from here to the forward's end, the next one first.
  [[nodiscard]] std::vector<int>::const_iterator next() const { return known_.begin() + place(); }
  [[nodiscard]] bool is_known() const { return !known_.empty(); }
  [[nodiscard]] std::vector<int>::const_iterator end() const { return known_.end(); }

 private:
  [[nodiscard]] std::ptrdiff_t place() const { return static_cast<std::ptrdiff_t>(next_); }
  void follow(int unit);
  void learn_without_backward(int unit);

  std::vector<int> known_;     // of the last forward whose end was seen
  std::size_t next_ = 0;       // the place in known_ that is expected next
  std::deque<Call> recorded_;  // since the last backward
  std::vector<int> unrecorded_;
  bool trained_ = false;  // known_ comes from a backward
};

}  // namespace tessera
