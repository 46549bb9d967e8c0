// Atomic operations on global and shared memory, with exactly CUDA's types: calls that nvcc rejects
// do not compile here either.
// CUDA's are relaxed. Here they acquire, and they release the writes of the thread before its last
// __threadfence. So the thread sanitizer reports a missing fence, and reports no race where the
// fence is there.
#pragma once

#include <atomic>
#include <type_traits>

#include "emulator/device/language.h"
#include "emulator/scheduler/thread_operations.h"

namespace tessera::emulator {

// *address = change(*address); returns the old value.
template <class T, class Change>
T atomically(T* address, Change change) {
  const std::atomic_ref<T> object(*address);
  const std::memory_order order = fenced() ? std::memory_order_acq_rel : std::memory_order_acquire;
  T old = object.load(std::memory_order_relaxed);
  while (!object.compare_exchange_weak(old, change(old), order, std::memory_order_relaxed)) {
  }
  return old;
}

// Sums of signed integers wrap around.
template <class T>
T wrapping_sum(T a, T b) {
  if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

}  // namespace tessera::emulator

template <tessera::emulator::OneOf<int, unsigned, unsigned long long, float, double> T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return tessera::emulator::atomically(
      address, [&](T old) { return tessera::emulator::wrapping_sum(old, value); });
}
// Rounded to nearest even, once.
inline __nv_bfloat16 atomicAdd(__nv_bfloat16* address, __nv_bfloat16 value) {
  return tessera::emulator::atomically(address, [&](__nv_bfloat16 old) {
    return __float2bfloat16_rn(__bfloat162float(old) + __bfloat162float(value));
  });
}
inline __half atomicAdd(__half* address, __half value) {
  return tessera::emulator::atomically(address, [&](__half old) {
    return __float2half_rn(__half2float(old) + __half2float(value));
  });
}
template <tessera::emulator::OneOf<int, unsigned, unsigned long long, unsigned short> T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return tessera::emulator::atomically(address,
                                       [&](T old) { return old == expected ? value : old; });
}

template <tessera::emulator::OneOf<int, unsigned, unsigned long long> T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return tessera::emulator::atomically(address, [&](T old) { return old | value; });
}
// Adds one and wraps from `last` to zero.
inline unsigned atomicInc(unsigned* address, unsigned last) {
  return tessera::emulator::atomically(address,
                                       [&](unsigned old) { return old >= last ? 0u : old + 1; });
}
