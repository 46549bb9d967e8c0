// The emulated runtime's settings, from the environment. Read once, when the runtime is first used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::emulator {

enum class StreamSchedule {
  inlined,  // every operation runs inside the call that enqueues it
  lazy,     // operations run only while the host waits
  seeded,   // a reproducible random order among the legal ones
  threads,  // one thread per stream
};

struct Settings {
  // TESSERA_EMULATOR_STREAMS = inline | lazy | seeded:N | threads
  StreamSchedule schedule = StreamSchedule::threads;
  std::uint64_t seed = 0;
  // TESSERA_EMULATOR_CHECK = 0 | 1 | halt
  bool check = false;
  bool halt = false;
  // TESSERA_EMULATOR_MEMORY, in bytes, of one device
  std::size_t memory = std::size_t{1} << 30;
  // TESSERA_EMULATOR_DEVICES
  int devices = 1;
  // TESSERA_EMULATOR_TIMEOUT, in seconds: if no operation ends for that long while the host waits
  // for one, the program ends with a report of what every stream waits for.
  int timeout = 300;
};

// Ends the program with a text on stderr if a value is not valid.
const Settings& settings();

}  // namespace tessera::emulator
