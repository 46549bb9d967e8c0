// The ids of gathers and scatters.
#pragma once

#include "base/error.h"
#include "kernels/indexing.h"

namespace tessera::kernels::cpu {

// Checks all ids, before anything is written, and calls use(ids) with the typed pointer.
template <class Use>
void with_axis_ids(const char* kernel, const AxisIds& at, Use&& use) {
  const auto checked = [&](const auto* ids) {
    for (std::int64_t i = 0; i < at.count(); ++i) {
      TESSERA_CHECK(ids[i] >= 0 && ids[i] < at.entries, ErrorCode::data,
                    "{}: id {} at position {} is outside the dimension of size {}", kernel, ids[i],
                    i, at.entries);
    }
    use(ids);
  };
  if (at.dtype == DType::int32) {
    checked(static_cast<const std::int32_t*>(at.ids));
  } else {
    TESSERA_REQUIRE(at.dtype == DType::int64, "{}: ids of {}; they are int32 or int64", kernel,
                    name_of(at.dtype));
    checked(static_cast<const std::int64_t*>(at.ids));
  }
}

}  // namespace tessera::kernels::cpu
