// Schedules from the environment, and permutations of blocks.
#include "emulator/scheduler/schedule.h"

#include <charconv>
#include <cstdlib>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tessera::emulator {
namespace {

template <class Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

[[noreturn]] void refuse(const char* variable, std::string_view value, const char* wanted) {
  throw std::invalid_argument(std::string(variable) + "=" + std::string(value) + ": wanted " +
                              wanted);
}

void read_order(Schedule& schedule) {
  constexpr const char* variable = "TESSERA_EMULATOR_SCHEDULE";
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return;
  const std::string_view text = value;
  constexpr std::string_view seeded = "random:";
  if (text == "forward") {
    schedule.order = Schedule::Order::forward;
  } else if (text == "reverse") {
    schedule.order = Schedule::Order::reverse;
  } else if (text == "random") {
    schedule.order = Schedule::Order::random;
  } else if (text.starts_with(seeded) && parse(text.substr(seeded.size()), schedule.seed)) {
    schedule.order = Schedule::Order::random;
  } else {
    refuse(variable, text, "forward, reverse, random or random:SEED");
  }
}

void read_threads(Schedule& schedule) {
  constexpr const char* variable = "TESSERA_EMULATOR_THREADS";
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return;
  if (!parse(std::string_view(value), schedule.threads) || schedule.threads < 1 ||
      schedule.threads > 64) {
    refuse(variable, value, "a number from 1 to 64");
  }
}

void read_races(Schedule& schedule) {
  constexpr const char* variable = "TESSERA_EMULATOR_RACES";
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return;
  const std::string_view text = value;
  if (text == "threads") {
    schedule.races = Schedule::Races::threads;
  } else if (text == "streams") {
    schedule.races = Schedule::Races::streams;
  } else {
    refuse(variable, text, "threads or streams");
  }
}

}  // namespace

std::uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15ull;
  std::uint64_t bits = state_;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
  return bits ^ (bits >> 31);
}

Schedule Schedule::from_environment() {
  Schedule schedule;
  read_order(schedule);
  read_threads(schedule);
  read_races(schedule);
  return schedule;
}

BlockOrder::BlockOrder(const Schedule& schedule, std::uint64_t count)
    : order_(schedule.order), count_(count) {
  if (order_ != Schedule::Order::random || count < 2) return;
  // turn * factor + offset modulo count visits every block when factor and count share no divisor.
  Random random(schedule.seed * 7919 + count);
  const auto bound = static_cast<unsigned>(count < 0x7fffffff ? count : 0x7fffffff);
  do {
    factor_ = 1 + random.below(bound);
  } while (std::gcd(factor_, count) != 1);
  offset_ = random.below(bound);
}

std::uint64_t BlockOrder::at(std::uint64_t turn) const {
  switch (order_) {
    case Schedule::Order::forward:
      return turn;
    case Schedule::Order::reverse:
      return count_ - 1 - turn;
    case Schedule::Order::random:
      break;
  }
  // Grids of more than 2^32 blocks would overflow here; no test runs such grids on the host.
  return (turn * factor_ + offset_) % count_;
}

}  // namespace tessera::emulator
