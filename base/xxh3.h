// XXH3 with the widest vectors of the processor: two to three times as fast as the library's plain
// functions, which are compiled for the oldest processor. Its header is installed where the library
// was built with these vectors.
#pragma once

#include <xxhash.h>

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>  // gives XXH3_64bits and XXH3_64bits_update that meaning
#endif
