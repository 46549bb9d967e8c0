// Values of a plain type from every rank, over the control plane.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace tessera::comm {

// Collective: the arrays of all ranks, in rank order. Their lengths may differ.
template <class T>
std::vector<std::vector<T>> exchange_arrays(Communicator& communicator, std::span<const T> mine,
                                            Tag tag) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()), mine.size_bytes());
  std::vector<std::vector<T>> all;
  for (const std::string& part : communicator.exchange(bytes, tag)) {
    TESSERA_CHECK(part.size() % sizeof(T) == 0, ErrorCode::rank_failed,
                  "rank {} sent {} bytes, which are not whole values of {} bytes", all.size(),
                  part.size(), sizeof(T));
    std::vector<T>& values = all.emplace_back(part.size() / sizeof(T));
    if (!part.empty()) std::memcpy(static_cast<void*>(values.data()), part.data(), part.size());
  }
  return all;
}

// Collective: the values of all ranks, in rank order.
template <class T>
std::vector<T> exchange_values(Communicator& communicator, const T& mine, Tag tag) {
  std::vector<T> all;
  for (const std::vector<T>& one : exchange_arrays(communicator, std::span(&mine, 1), tag)) {
    TESSERA_CHECK(one.size() == 1, ErrorCode::rank_failed, "rank {} sent {} values, expected one",
                  all.size(), one.size());
    all.push_back(one.front());
  }
  return all;
}

}  // namespace tessera::comm
