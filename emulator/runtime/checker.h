// The access checker: finds accesses of streams and the host to the same memory that nothing
// orders.
//
// Every kernel launch, copy and memset declares the memory that it reads and writes. The checker
// keeps a vector clock for each stream, carried on by events, waits and synchronisations, and for
// each range of memory the accesses that a later one must come after. It looks at the calls alone,
// in the order in which the host makes them, so it finds a missing wait in one run under any
// schedule, whether or not the bytes came out wrong.
//
// All host threads are one actor. A rank's threads hand work to one another through mutexes that
// the checker does not see; one clock for all of them takes whatever one of them has waited for as
// known to the others. So it misses a host thread that relies on another's wait without
// synchronising with it (the thread sanitizer's domain), and a missing wait between two streams is
// not reported once some host thread has waited for the earlier of the two accesses.
//
// Host accesses to pinned memory are known where they are declared: host_access() below.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tessera::emulator::checker {

// On at the start where TESSERA_EMULATOR_CHECK is 1 or halt. Turning it on or off forgets the past.
void set_enabled(bool enabled);
bool enabled();

// Pairs of unordered accesses found since the start or the last reset(). Where the same two
// operations meet on the same two streams again it is counted, not told again.
int conflicts();
// What each was: operations, ranges and streams. Also on stderr.
std::vector<std::string> reports();
// Forgets conflicts and reports; what is known of streams and memory stays.
void reset();

// The host itself reads or writes memory that the device uses. `what` lives as long as the program.
void host_access(const void* memory, std::size_t bytes, bool write, const char* what);

}  // namespace tessera::emulator::checker
