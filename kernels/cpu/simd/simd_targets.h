// Which instruction sets the kernels are compiled for. Include before any Highway header.
#pragma once

// The oldest processor served is x86-64-v2; emulated and older targets would only cost compile
// time. Sets beyond AVX3 (the bits below it) are left out: some releases of Highway have them and
// others do not, and a kernel is to have the same code and bits with all of them.
#if defined(__x86_64__) && !defined(HWY_BASELINE_TARGETS)
#define HWY_BASELINE_TARGETS HWY_SSE4
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_EMU128 | HWY_SCALAR | (HWY_AVX3 - 1))
#endif
