// The ids of gathers and scatters on the device.
#pragma once

#include "kernels/cuda/device/fault.h"
#include "kernels/cuda/device/indices.h"
#include "kernels/indexing.h"

namespace tessera::kernels::cuda {

struct DeviceIds {
  Indices ids;
  std::int64_t outer, entries, length, inner;
  bool shared;
  Fault* fault;

  // The id of element i of [outer, length, inner], or -1 after a report.
  __device__ __forceinline__ std::int64_t at(std::int64_t i, std::int64_t l) const {
    const std::int64_t position = shared ? l : i;
    const std::int64_t id = ids[position];
    if (id >= 0 && id < entries) return id;
    report_fault(fault, Fault::axis_id, position, id, entries);
    return -1;
  }
};

inline DeviceIds device_ids(const AxisIds& at, const char* kernel, Context& context) {
  return {indices_of(at.ids, at.dtype, kernel),
          at.outer,
          at.entries,
          at.length,
          at.inner,
          at.shared,
          context.fault};
}

}  // namespace tessera::kernels::cuda
