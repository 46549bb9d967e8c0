// Sends records between ranks, and writes their text.
#include "sharding/profiler/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "engine/storage/output_file.h"

namespace tessera {
namespace {

constexpr comm::Tag trace_tag{0, 0, comm::Phase::metrics};

// Limits over all ranks: the spans that rank 0 accepts, and the bytes of a round of messages. And
// the minimum that each rank may send.
constexpr std::size_t gathered_spans = std::size_t{1} << 22;
constexpr std::size_t fewest_spans = std::size_t{1} << 12;
constexpr std::size_t round_bytes = std::size_t{1} << 24;
constexpr std::size_t fewest_bytes = std::size_t{1} << 12;

// Precedes a record's collectives and spans.
struct RecordHead {
  std::int64_t step, begin, end;
  std::array<double, exposed_count> exposed_seconds;
  double schedule_seconds, exchange_seconds, data_seconds;
  std::int64_t unit_passes;
  std::uint64_t lost, lost_behind, collectives, spans;
};

template <class T>
void put_values(std::string& text, const T* values, std::size_t count) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (count > 0) text.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

template <class T>
void take_values(std::string_view& text, T* values, std::size_t count) {
  TESSERA_REQUIRE(text.size() >= count * sizeof(T), "a record of a step that is cut off");
  if (count > 0) std::memcpy(static_cast<void*>(values), text.data(), count * sizeof(T));
  text.remove_prefix(count * sizeof(T));
}

std::string encode_record(const StepRecord& record, std::size_t most) {
  const std::size_t spans = std::min(record.spans.size(), most);
  const RecordHead head{record.step,
                        record.begin,
                        record.end,
                        record.exposed_seconds,
                        record.schedule_seconds,
                        record.exchange_seconds,
                        record.data_seconds,
                        record.unit_passes,
                        record.lost + (record.spans.size() - spans),
                        record.lost_behind,
                        record.collectives.size(),
                        spans};
  std::string text;
  put_values(text, &head, 1);
  put_values(text, record.collectives.data(), record.collectives.size());
  put_values(text, record.spans.data(), spans);
  return text;
}

StepRecord decode_record(std::string_view text) {
  RecordHead head{};
  take_values(text, &head, 1);
  StepRecord record;
  record.step = head.step;
  record.begin = head.begin;
  record.end = head.end;
  record.exposed_seconds = head.exposed_seconds;
  record.schedule_seconds = head.schedule_seconds;
  record.exchange_seconds = head.exchange_seconds;
  record.data_seconds = head.data_seconds;
  record.unit_passes = head.unit_passes;
  record.lost = head.lost;
  record.lost_behind = head.lost_behind;
  record.collectives.resize(head.collectives);
  take_values(text, record.collectives.data(), head.collectives);
  record.spans.resize(head.spans);
  take_values(text, record.spans.data(), head.spans);
  return record;
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

bool names_its_unit(SpanKind kind) {
  switch (kind) {
    case SpanKind::optimizer:
    case SpanKind::data:
    case SpanKind::other:
    case SpanKind::exchange:
    case SpanKind::communication:
    case SpanKind::save:
      return false;
    default:
      return true;
  }
}

bool moves_bytes(SpanKind kind) {
  return kind == SpanKind::all_gather || kind == SpanKind::reduce_scatter ||
         kind == SpanKind::all_reduce || kind == SpanKind::all_to_all || kind == SpanKind::copy;
}

// Lanes are threads; thread 0 has the steps.
int thread_of(Lane lane) {
  return 1 + static_cast<int>(lane);
}

// The time for which the compute lane stood still for each collective. A wait belongs to the newest
// collective that began before the wait's end, of its unit or, for reductions, of any. Spans of a
// lane are in the order of time.
class WaitsOfCollectives {
 public:
  WaitsOfCollectives(const StepRecord& record, std::size_t units) : waited_(record.spans.size()) {
    std::vector<std::size_t> lanes[2];  // gathers, reductions
    for (std::size_t i = 0; i < record.spans.size(); ++i) {
      if (record.spans[i].lane == Lane::gather) lanes[0].push_back(i);
      if (record.spans[i].lane == Lane::reduce || record.spans[i].lane == Lane::all_reduce)
        lanes[1].push_back(i);
    }
    std::sort(lanes[1].begin(), lanes[1].end(), [&](std::size_t a, std::size_t b) {
      return record.spans[a].begin < record.spans[b].begin;
    });
    std::vector<std::size_t> newest_of_unit(units, none);
    std::size_t newest_reduction = none, next[2] = {0, 0};
    for (const Span& wait : record.spans) {
      if (wait.kind != SpanKind::wait) continue;
      const bool reduces = wait.exposed == Exposed::reduce || wait.exposed == Exposed::all_reduce;
      const std::vector<std::size_t>& lane = lanes[reduces];
      std::size_t& at = next[reduces];
      for (; at < lane.size() && record.spans[lane[at]].begin < wait.end; ++at) {
        newest_reduction = reduces ? lane[at] : newest_reduction;
        if (!reduces)
          newest_of_unit.at(static_cast<std::size_t>(record.spans[lane[at]].unit)) = lane[at];
      }
      const std::size_t newest =
          reduces ? newest_reduction : newest_of_unit.at(static_cast<std::size_t>(wait.unit));
      if (newest != none) waited_[newest] += wait.end - wait.begin;
    }
  }
  [[nodiscard]] std::int64_t of(std::size_t span) const { return waited_[span]; }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  std::vector<std::int64_t> waited_;
};

double microseconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-3;
}

std::string event_begin(std::string_view name, std::string_view category, std::size_t rank,
                        int thread, std::int64_t begin, std::int64_t end) {
  return fmt::format(
      R"({{"name":{},"cat":"{}","ph":"X","ts":{:.3f},"dur":{:.3f},"pid":{},"tid":{})",
      json_text(name), category, microseconds(begin), microseconds(end - begin), rank, thread);
}

std::string event_of(const Span& span, std::int64_t waited, const StepRecord& record,
                     std::size_t rank, const std::vector<std::string>& units) {
  const std::string& unit = units.at(static_cast<std::size_t>(span.unit));
  const bool of_unit = names_its_unit(span.kind);
  std::string text =
      event_begin(of_unit ? std::string_view(unit) : name_of(span.kind), name_of(span.kind), rank,
                  thread_of(span.lane), span.begin, span.end);
  text += fmt::format(R"(,"args":{{"step":{})", record.step);
  if (of_unit) text += fmt::format(R"(,"unit":{})", json_text(unit));
  if (span.kind == SpanKind::wait) text += fmt::format(R"(,"for":"{}")", name_of(span.exposed));
  if (moves_bytes(span.kind)) {
    text += fmt::format(R"(,"phase":"{}","bytes":{})", name_of(span.phase), span.bytes);
  }
  if (span.lane == Lane::gather || span.lane == Lane::reduce || span.lane == Lane::all_reduce) {
    text += fmt::format(R"(,"waited_us":{:.3f})", microseconds(waited));
  }
  return text + "}}";
}

std::string metadata(std::string_view what, int rank, int thread, std::string_view argument) {
  return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{{}}}}})", what, rank,
                     thread, argument);
}

}  // namespace

// Works in rounds: in each of them every rank sends a piece, and only rank 0 keeps them.
std::vector<StepRecord> gather_records(const Context& context, const StepRecord& mine) {
  comm::Communicator& communicator = context.communicator();
  const auto ranks = static_cast<std::size_t>(context.world_size());
  const std::string text = encode_record(mine, std::max(gathered_spans / ranks, fewest_spans));
  const std::size_t piece = std::max(round_bytes / ranks, fewest_bytes);
  std::vector<std::string> texts(ranks);
  bool more = true;
  for (std::size_t at = 0; more; at += piece) {
    const std::string_view rest = std::string_view(text).substr(std::min(at, text.size()));
    std::string message(rest.size() > piece ? "+" : ".");
    message += rest.substr(0, piece);
    more = false;
    const std::vector<std::string> pieces = communicator.exchange(message, trace_tag);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      more = more || pieces[rank].front() == '+';
      if (context.is_main()) texts[rank] += std::string_view(pieces[rank]).substr(1);
    }
  }
  std::vector<StepRecord> records;
  if (context.is_main()) {
    for (const std::string& part : texts) records.push_back(decode_record(part));
  }
  return records;
}

std::string trace_begin() {
  std::string text =
      "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"format\":\"tessera-trace\",\"version\":1},"
      "\"traceEvents\":[\n";
  text += metadata("trace", 0, 0, R"("name":"tessera")");
  text += '\n';
  return text;
}

std::string trace_names(int ranks) {
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto add = [&](std::string_view what, int thread, const std::string& argument) {
      text += ',';
      text += metadata(what, rank, thread, argument);
      text += '\n';
    };
    add("process_name", 0, fmt::format(R"("name":"rank {}")", rank));
    add("process_sort_index", 0, fmt::format(R"("sort_index":{})", rank));
    add("thread_name", 0, R"("name":"step")");
    for (int lane = 0; lane < lane_count; ++lane) {
      const int thread = thread_of(static_cast<Lane>(lane));
      add("thread_name", thread, fmt::format(R"("name":"{}")", name_of(static_cast<Lane>(lane))));
      add("thread_sort_index", thread, fmt::format(R"("sort_index":{})", thread));
    }
  }
  return text;
}

std::string trace_events(const std::vector<StepRecord>& ranks,
                         const std::vector<std::string>& units) {
  std::string text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const StepRecord& record = ranks[rank];
    text += ',';
    text +=
        event_begin(fmt::format("step {}", record.step), "step", rank, 0, record.begin, record.end);
    text += fmt::format(
        R"(,"args":{{"step":{},"exposed_us":{:.3f},"schedule_us":{:.3f},"lost_spans":{}}}}})",
        record.step, record.exposed() * 1e6, record.schedule_seconds * 1e6,
        record.lost + record.lost_behind);
    text += "\n";
    const WaitsOfCollectives waits(record, units.size());
    for (std::size_t i = 0; i < record.spans.size(); ++i) {
      text += ',';
      text += event_of(record.spans[i], waits.of(i), record, rank, units);
      text += '\n';
    }
  }
  return text;
}

std::string trace_end() {
  return "]}\n";
}

void write_trace(const Context& context, StepRecorder& recorder, const std::string& file) {
  recorder.complete();
  const std::vector<StepRecord> records = gather_records(context, recorder.last());
  if (!context.is_main()) return;
  write_output("trace " + file, file,
               trace_begin() + trace_names(context.world_size()) +
                   trace_events(records, recorder.units()) + trace_end());
}

}  // namespace tessera
