// Connections of programs that have not proven themselves: how many there may be, and which one
// goes when there are more. A flood of them must not keep a rank out.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace tessera::comm {

struct CrowdLimits {
  std::size_t all = 64;
  std::size_t of_one_address = 48;
  std::chrono::milliseconds patience_in_crowd{1'000};
  // The most that one turn of a listener accepts: its thread has other work.
  static constexpr int accepted_a_turn = 256;

  // The time for a guest to prove itself: it is short while half of the places are taken.
  [[nodiscard]] std::chrono::milliseconds patience(std::size_t guests,
                                                   std::chrono::milliseconds usual) const {
    return 2 * guests >= all ? std::min(usual, patience_in_crowd) : usual;
  }
};

enum class Standing { silent, has_spoken, gone };

// Makes room for a further guest from `address` if there is none: the oldest guest goes that has
// said nothing, else the oldest one; one of that address if it has its limit. The guests are in the
// order of their arrival. `look` reads what has arrived from a guest meanwhile.
template <class Guest, class Look>
void make_room(std::vector<Guest>& guests, const CrowdLimits& limits, const std::string& address,
               const Look& look) {
  const auto is_same = [&](const Guest& guest) { return guest.address == address; };
  const auto same = static_cast<std::size_t>(std::count_if(guests.begin(), guests.end(), is_same));
  const bool of_address = same >= limits.of_one_address;
  if (!of_address && guests.size() < limits.all) return;
  auto leaving = guests.end();
  for (auto guest = guests.begin(); guest != guests.end(); ++guest) {
    if (of_address && !is_same(*guest)) continue;
    if (leaving == guests.end()) leaving = guest;
    if (look(*guest) == Standing::has_spoken) continue;
    leaving = guest;
    break;
  }
  if (leaving != guests.end()) guests.erase(leaving);
}

// While the process may not open more files, a listener stays readable, and poll() would return at
// once: the listener is left out for a moment.
class ListenerPause {
 public:
  static constexpr std::chrono::milliseconds length{100};

  // After a failed accept4(): true when it lacked a descriptor or memory, and a guest has left for
  // it. Without guests the pause begins.
  template <class Guest, class Look>
  bool makes_room(int error, std::vector<Guest>& guests, const Look& look) {
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return false;
    const std::size_t before = guests.size();
    make_room(guests, {.all = before}, "", look);
    if (before == 0) until_ = Clock::now() + length;
    return before > 0;
  }
  [[nodiscard]] bool over() const { return Clock::now() >= until_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point until_{};
};

}  // namespace tessera::comm
