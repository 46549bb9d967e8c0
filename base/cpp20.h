// The first line of every public header but the version's includes this one: see
// cmake/write_public_headers.cmake.
#pragma once

#if defined(_MSVC_LANG)
#define TESSERA_CPLUSPLUS _MSVC_LANG
#else
#define TESSERA_CPLUSPLUS __cplusplus
#endif

#if TESSERA_CPLUSPLUS <= 201703L
#error "Tessera needs C++20: compile with -std=c++20, or /std:c++20"
// Compilers go on after an #error, and would add hundreds of others; a missing file ends them.
#include <the-error-above-says-why>
#endif

#undef TESSERA_CPLUSPLUS
