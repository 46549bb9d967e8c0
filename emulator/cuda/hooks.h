// Hooks by which a program tells the emulator what it cannot see itself. The engine calls them only
// where it is linked with the emulator.
#pragma once

#include <cstddef>

extern "C" {

// The stream's name in reports and for DropWaits (drop_waits.h); may be shared by several streams,
// as those of many ranks. Applies to what is recorded and launched from now on.
void tessera_emulator_name_stream(void* stream, const char* name);

// The host itself reads or writes memory that the device uses, at this point (checker.h). `what`
// lives as long as the program.
void tessera_emulator_host_access(const void* memory, std::size_t bytes, bool write,
                                  const char* what);

}  // extern "C"
