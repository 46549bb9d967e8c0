// Names of lanes and kinds.
#include "sharding/profiler/span.h"

#include "base/error.h"

namespace tessera {

std::string_view name_of(Lane lane) {
  switch (lane) {
    case Lane::compute:
      return "compute";
    case Lane::gather:
      return "gather";
    case Lane::reduce:
      return "reduce";
    case Lane::copy:
      return "copy";
    case Lane::copy_back:
      return "copy back";
    case Lane::save:
      return "save";
    case Lane::all_reduce:
      return "all-reduce";
  }
  misuse("a lane without a name");
}

std::string_view name_of(SpanKind kind) {
  switch (kind) {
    case SpanKind::forward:
      return "forward";
    case SpanKind::recompute:
      return "recompute";
    case SpanKind::backward:
      return "backward";
    case SpanKind::optimizer:
      return "optimizer";
    case SpanKind::data:
      return "data";
    case SpanKind::other:
      return "other";
    case SpanKind::schedule:
      return "schedule";
    case SpanKind::wait:
      return "wait";
    case SpanKind::exchange:
      return "exchange";
    case SpanKind::communication:
      return "communication";
    case SpanKind::all_gather:
      return "all_gather";
    case SpanKind::reduce_scatter:
      return "reduce_scatter";
    case SpanKind::all_reduce:
      return "all_reduce";
    case SpanKind::all_to_all:
      return "all_to_all";
    case SpanKind::copy:
      return "copy";
    case SpanKind::save:
      return "save";
  }
  misuse("a span of a kind without a name");
}

std::string_view name_of(Exposed exposed) {
  switch (exposed) {
    case Exposed::gather_forward:
      return "gather_forward";
    case Exposed::gather_backward:
      return "gather_backward";
    case Exposed::reduce:
      return "reduce";
    case Exposed::all_reduce:
      return "all_reduce";
    case Exposed::other:
      return "other";
  }
  misuse("a wait without a name");
}

}  // namespace tessera
