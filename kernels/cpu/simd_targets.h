// Which instruction sets the kernels are compiled for. Include before any Highway header.
#pragma once

// The oldest processor served is x86-64-v2; emulated and older targets would only cost compile
// time.
#if defined(__x86_64__) && !defined(HWY_BASELINE_TARGETS)
#define HWY_BASELINE_TARGETS HWY_SSE4
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_EMU128 | HWY_SCALAR)
#endif
