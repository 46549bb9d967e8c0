// Reads the environment variables.
#include "emulator/runtime/settings.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "emulator/runtime/report.h"

namespace tessera::emulator {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

[[noreturn]] void reject(const char* name, std::string_view value, const char* choices) {
  end_program("{}={} is not valid: use {}", name, value, choices);
}

// `text` is `value`, or the part of it that is the number.
template <class Number>
Number number_in(const char* name, std::string_view value, std::string_view text,
                 const char* choices) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < Number{}) {
    reject(name, value, choices);
  }
  return number;
}

template <class Number>
void read_number(const char* name, Number& number) {
  const std::string_view value = variable(name);
  if (!value.empty()) number = number_in<Number>(name, value, value, "a number from 0");
}

void read_schedule(Settings& settings) {
  const char* name = "TESSERA_EMULATOR_STREAMS";
  const char* choices = "inline, lazy, seeded:N or threads";
  constexpr std::string_view seeded = "seeded:";
  const std::string_view value = variable(name);
  if (value == "inline") {
    settings.schedule = StreamSchedule::inlined;
  } else if (value == "lazy") {
    settings.schedule = StreamSchedule::lazy;
  } else if (value.substr(0, seeded.size()) == seeded) {
    settings.schedule = StreamSchedule::seeded;
    settings.seed = number_in<std::uint64_t>(name, value, value.substr(seeded.size()), choices);
  } else if (!value.empty() && value != "threads") {
    reject(name, value, choices);
  }
}

void read_check(Settings& settings) {
  const char* name = "TESSERA_EMULATOR_CHECK";
  const std::string_view value = variable(name);
  if (value.empty() || value == "0") return;
  if (value != "1" && value != "halt") reject(name, value, "0, 1 or halt");
  settings.check = true;
  settings.halt = value == "halt";
}

Settings read() {
  Settings settings;
  read_schedule(settings);
  read_check(settings);
  read_number("TESSERA_EMULATOR_MEMORY", settings.memory);
  read_number("TESSERA_EMULATOR_DEVICES", settings.devices);
  read_number("TESSERA_EMULATOR_TIMEOUT", settings.timeout);
  return settings;
}

}  // namespace

const Settings& settings() {
  static const Settings the_settings = read();
  return the_settings;
}

}  // namespace tessera::emulator
