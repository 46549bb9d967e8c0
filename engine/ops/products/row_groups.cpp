// Sorts rows into groups, sends them there and adds them up.
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/launch.h"
#include "engine/op_checks.h"
#include "engine/ops.h"
#include "engine/ops/products/grouped.h"
#include "engine/recompute_region.h"

namespace tessera {
namespace {

// A counting sort of the ids: O(ids + groups).
template <class Id>
void sort_rows(std::span<const Id> ids, std::vector<std::int64_t>& starts,
               std::vector<std::int32_t>& places) {
  const auto groups = static_cast<std::int64_t>(starts.size()) - 1;
  for (std::size_t place = 0; place < ids.size(); ++place) {
    const std::int64_t id = ids[place];
    TESSERA_CHECK(id >= 0 && id < groups, ErrorCode::data,
                  "group_rows: id {} at position {} is outside the {} groups", id, place, groups);
    ++starts[static_cast<std::size_t>(id) + 1];
  }
  for (std::size_t g = 1; g < starts.size(); ++g) starts[g] += starts[g - 1];
  std::vector<std::int64_t> next(starts.begin(), starts.end() - 1);
  for (std::size_t place = 0; place < ids.size(); ++place) {
    std::int64_t& at = next[static_cast<std::size_t>(ids[place])];
    places[static_cast<std::size_t>(at++)] = static_cast<std::int32_t>(place);
  }
}

void spread_evenly(std::int64_t rows, std::vector<std::int64_t>& starts) {
  const auto groups = static_cast<std::int64_t>(starts.size()) - 1;
  for (std::int64_t g = 0; g <= groups; ++g) {
    const std::int64_t before = rows / groups * g + std::min(rows % groups, g);
    starts[static_cast<std::size_t>(g)] = before;
  }
}

void require_groups(const char* op, const Tensor& tensor, std::int64_t rows,
                    const RowGroups& groups) {
  ops::require_defined(op, groups.places, groups.sources);
  TESSERA_REQUIRE(tensor.dimensions() == 2 && tensor.size(0) == rows,
                  "{}: a tensor of shape {}; the groups have {} sources and {} rows, so [{}, dim] "
                  "is required",
                  op, tensor.shape().to_string(), groups.source_count, groups.rows(), rows);
  ops::require_same_device(op, tensor, groups.sources);
}

void copy_rows(const Tensor& sources, const Tensor& x, const Tensor& out) {
  TESSERA_LAUNCH(x.device(), embedding_forward,
                 {sources.data(), sources.dtype(), x.data(), out.raw_data(), sources.elements(),
                  x.size(0), x.size(1), x.dtype()});
}

}  // namespace

RowGroups group_rows(const Tensor& ids, std::int64_t groups) {
  ops::require_defined("group_rows", ids);
  TESSERA_REQUIRE(ids.dtype() == int32 || ids.dtype() == int64,
                  "group_rows: ids of {}; int32 or int64 required", name_of(ids.dtype()));
  const std::int64_t rows = ids.elements();
  TESSERA_REQUIRE(ids.dimensions() > 0 && ids.size(-1) > 0 && groups > 0 &&
                      rows <= std::numeric_limits<std::int32_t>::max(),
                  "group_rows: ids of shape {} for {} groups; at least one id for each source, at "
                  "least one group, and fewer than 2^31 ids",
                  ids.shape().to_string(), groups);
  RowGroups result;
  result.source_count = rows / ids.size(-1);
  result.starts.assign(static_cast<std::size_t>(groups) + 1, 0);
  std::vector<std::int32_t> places(static_cast<std::size_t>(rows));
  const Device device = ids.device();
  const bool is_planned = device.is_planned();
  // A plan for a GPU also waits here.
  const bool is_read = !device.is_meta() && device.stands_for() != DeviceType::cpu;
  const Tensor on_host = is_read ? ids.to(Device::cpu()) : ids;
  if (is_planned || device.is_meta()) {
    spread_evenly(rows, result.starts);
  } else if (ids.dtype() == int32) {
    sort_rows(std::span(on_host.data_as<std::int32_t>(), places.size()), result.starts, places);
  } else {
    sort_rows(std::span(on_host.data_as<std::int64_t>(), places.size()), result.starts, places);
  }
  std::vector<std::int32_t> sources(places);
  const auto each = static_cast<std::int32_t>(ids.size(-1));
  for (std::int32_t& source : sources) source /= each;
  result.places = Tensor::from(places, {rows}).to(device);
  result.sources = Tensor::from(sources, {rows}).to(device);
  autograd::note_values("group_rows", {ids}, {result.places, result.sources});
  return result;
}

Tensor dispatch_rows(const Tensor& x, const RowGroups& groups) {
  ops::require_floating("dispatch_rows", x);
  require_groups("dispatch_rows", x, groups.source_count, groups);
  Tensor out = embedding(groups.sources, x);
  if (autograd::needs_graph({x})) {
    out.impl()->recompute = std::make_shared<const std::function<Tensor()>>(
        [saved = autograd::SavedTensor(x), sources = groups.sources] {
          const Tensor source_rows = saved.get();
          Tensor again = Tensor::empty({sources.elements(), source_rows.size(1)},
                                       source_rows.dtype(), source_rows.device());
          copy_rows(sources, source_rows, again);
          return again;
        });
  }
  return out;
}

Tensor combine_rows(const Tensor& rows, const RowGroups& groups) {
  ops::require_floating("combine_rows", rows);
  require_groups("combine_rows", rows, groups.rows(), groups);
  const Tensor& sources = groups.sources;
  Tensor out = Tensor::empty({groups.source_count, rows.size(1)}, rows.dtype(), rows.device());
  if (autograd::value_is_needed()) {
    TESSERA_LAUNCH(rows.device(), embedding_backward,
                   {sources.data(), sources.dtype(), rows.data(), out.raw_data(), groups.rows(),
                    groups.source_count, rows.size(1), rows.dtype()});
  }
  autograd::record(
      Op::combine_rows, {rows}, {out},
      [sources](std::vector<Tensor>& dout, autograd::GradientSink& sink) {
        const Tensor drows =
            Tensor::empty({sources.elements(), dout[0].size(1)}, dout[0].dtype(), dout[0].device());
        copy_rows(sources, dout[0], drows);
        sink.add(0, drows);
      },
      autograd::Reads::nothing);
  return out;
}

}  // namespace tessera
