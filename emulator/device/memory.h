// A store with a cache hint, which the host ignores.
#pragma once

#include <type_traits>

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names

template <class T>
inline void __stwb(T* address, std::type_identity_t<T> value) {
  *address = value;
}

// NOLINTEND(bugprone-reserved-identifier)
