// The instruction sets for which kernels are compiled. Include before any Highway header.
#pragma once

// The oldest supported processor is x86-64-v2; emulated and older targets would only cost compile
// time. Sets beyond AVX3 (the bits below it) are left out: only some releases of Highway have them,
// and a kernel should have the same code and bits with all of them.
#if defined(__x86_64__) && !defined(HWY_BASELINE_TARGETS)
#define HWY_BASELINE_TARGETS HWY_SSE4
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_EMU128 | HWY_SCALAR | (HWY_AVX3 - 1))
#endif
