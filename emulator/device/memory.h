// Loads and stores with a cache hint, which the host ignores.
#pragma once

#include <type_traits>

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names

#define TESSERA_LOAD(name)          \
  template <class T>                \
  inline T name(const T* address) { \
    return *address;                \
  }
TESSERA_LOAD(__ldg)
TESSERA_LOAD(__ldca)
TESSERA_LOAD(__ldcg)
TESSERA_LOAD(__ldcs)
TESSERA_LOAD(__ldcv)
TESSERA_LOAD(__ldlu)
#undef TESSERA_LOAD

#define TESSERA_STORE(name)                                     \
  template <class T>                                            \
  inline void name(T* address, std::type_identity_t<T> value) { \
    *address = value;                                           \
  }
TESSERA_STORE(__stcg)
TESSERA_STORE(__stcs)
TESSERA_STORE(__stwb)
TESSERA_STORE(__stwt)
#undef TESSERA_STORE

// NOLINTEND(bugprone-reserved-identifier)
