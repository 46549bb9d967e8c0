// The access checker finds unordered accesses of streams and the host to the same memory.
// Every kernel launch, copy and memset declares the memory that it reads and writes. The checker
// keeps a vector clock for each stream, advanced by events, waits and synchronisations, and for
// each range of memory the accesses that a later one must come after. It examines only the calls,
// in the order in which the host makes them. So it finds a missing wait in one run under any
// schedule, whether or not the results were wrong.
// All host threads are one actor. A rank's threads hand work to one another through mutexes that
// the checker does not see. With one clock for all of them, a wait by one thread counts for the
// others. So the checker misses a host thread that relies on another's wait without synchronising
// with it (the thread sanitizer finds that). It also misses a missing wait between two streams once
// some host thread has waited for the earlier of the two accesses.
// Host accesses to pinned memory are known where they are declared: host_access() below.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tessera::emulator::checker {

// Initially on where TESSERA_EMULATOR_CHECK is 1 or halt. Turning it on or off clears the past.
void set_enabled(bool enabled);
bool enabled();

// Pairs of unordered accesses found since the start or the last reset(). If the same two operations
// meet again on the same two streams, that is counted but not reported again.
int conflicts();
// A text for each conflict: operations, ranges and streams. Also printed on stderr.
std::vector<std::string> reports();
// Clears conflicts and reports; the knowledge of streams and memory stays.
void reset();

// The host itself reads or writes memory that the device uses. `what` lives as long as the program.
void host_access(const void* memory, std::size_t bytes, bool write, const char* what);

}  // namespace tessera::emulator::checker
