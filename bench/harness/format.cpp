// The JSON of a report: one list of members for each type, for reading and for writing.
#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <fstream>
#include <limits>
#include <set>
#include <type_traits>

#include "base/error.h"
#include "bench/harness/file.h"

namespace tessera::bench {
namespace {

constexpr double most_bytes = 9e18;  // the limit of a signed 64-bit number
constexpr double most_count = 1e9;

template <class T, class... Types>
concept OneOf = (std::same_as<std::remove_const_t<T>, Types> || ...);

void visit_members(auto& v, OneOf<Spread> auto& spread) {
  v.visit("median", spread.median, "low", spread.low, "high", spread.high, "rounds", spread.rounds);
}

void visit_members(auto& v, OneOf<RoundSettings> auto& settings) {
  v.visit("steps", settings.steps, "warmup", settings.warmup, "rounds", settings.rounds);
}

void visit_members(auto& v, OneOf<ReportSettings> auto& s) {
  v.visit("steps", s.steps, "warmup", s.warmup, "rounds", s.rounds, "time_limit_s", s.time_limit_s,
          "row_time_limit_s", s.row_time_limit_s, "budget_s", s.budget_s, "threads_per_rank",
          s.threads_per_rank, "fill_cores", s.fill_cores);
}

void visit_members(auto& v, OneOf<ModelFigures> auto& model) {
  v.visit("architecture", model.architecture, "parameters", model.parameters, "tokens_per_sample",
          model.tokens_per_sample, "flops_per_sample", model.flops_per_sample, "flops_per_token",
          model.flops_per_token, "formula", model.formula);
}

void visit_members(auto& v, OneOf<RowMemory> auto& memory) {
  v.visit("planned", memory.planned, "measured", memory.measured, "resident", memory.resident,
          "kinds", memory.kinds);
}

void visit_members(auto& v, OneOf<MovedBytes> auto& call) {
  v.visit("phase", call.phase, "collective", call.collective, "calls", call.calls, "bytes",
          call.bytes);
}

void visit_members(auto& v, OneOf<ProductTimes> auto& products) {
  v.visit("step_s", products.step_s, "flops", products.flops, "best_flops_per_s",
          products.best_flops_per_s, "dtype", products.dtype, "kernel", products.kernel);
}

void visit_members(auto& v, OneOf<MeasuredPeer> auto& peer) {
  v.visit("name", peer.name, "mode", peer.mode, "backend", peer.backend, "compile", peer.compile,
          "version", peer.version);
  v.visit_others(peer.further);
}

void visit_members(auto& v, OneOf<PeerRatio> auto& ratio) {
  v.visit("id", ratio.id, "tokens_per_s", ratio.tokens_per_s, "memory", ratio.memory);
}

void visit_members(auto& v, OneOf<RowResult> auto& row) {
  v.visit("id", row.id, "variant", row.variant, "name", row.name, "launcher", row.launcher,
          "strategy", row.strategy, "world_size", row.world_size, "precision", row.precision,
          "batch_size", row.batch_size, "axes", row.axes, "peer", row.peer, "model", row.model,
          "settings", row.settings, "status", row.state, "reason", row.reason, "exit_code",
          row.exit_code, "samples_per_s", row.samples_per_s, "tokens_per_s", row.tokens_per_s,
          "step_s", row.step_s, "speedup", row.speedup, "efficiency", row.efficiency, "memory",
          row.memory, "bytes_moved", row.bytes_moved, "comm_bytes", row.comm_bytes, "exposed_s",
          row.exposed_s, "engine_s_per_unit", row.engine_s_per_unit, "products", row.products,
          "products_share", row.products_share, "mfu", row.mfu, "mfu_formula", row.mfu_formula,
          "losses", row.losses, "timeline", row.timeline, "tessera", row.tessera);
}

void visit_members(auto& v, OneOf<BenchMachine> auto& machine) {
  v.visit("processor", machine.processor, "cores", machine.cores, "memory_bytes",
          machine.memory_bytes, "device", machine.device, "system", machine.system, "tessera",
          machine.tessera, "matrix_products", machine.matrix_products);
}

void visit_members(auto& v, OneOf<BenchReport> auto& report) {
  v.visit("recipe", report.recipe, "command", report.command, "machine", report.machine, "model",
          report.model, "settings", report.settings, "rows", report.rows);
}

// The member without which the row of a report is not complete; empty: it is complete.
std::string_view lacking(const RowResult& row) {
  const auto lacks = [&](const Spread& spread) {
    const auto positive = [](double value) { return value > 0; };
    const bool whole = !spread.rounds.empty() && positive(spread.median) && positive(spread.low) &&
                       positive(spread.high) &&
                       std::all_of(spread.rounds.begin(), spread.rounds.end(), positive);
    return !whole && (row.state == RowState::measured || spread.median != 0);
  };
  return row.world_size < 1                                    ? "world_size"
         : row.exit_code > 255                                 ? "exit_code"
         : lacks(row.samples_per_s)                            ? "samples_per_s"
         : lacks(row.tokens_per_s)                             ? "tokens_per_s"
         : lacks(row.step_s)                                   ? "step_s"
         : row.products && row.products->best_flops_per_s <= 0 ? "products"
                                                               : "";
}

class Writer {
 public:
  explicit Writer(BenchJson& json) : json_(json) {}

  // An unknown value is null, but `tessera` is left out where there is nothing to compare.
  template <class T, class... Rest>
  void visit(const char* name, const T& value, const Rest&... rest) {
    BenchJson json = json_of(value);
    if (!std::same_as<T, std::optional<PeerRatio>> || !json.is_null())
      json_[name] = std::move(json);
    if constexpr (sizeof...(rest) > 0) visit(rest...);
  }
  void visit_others(const BenchJson& members) { json_.update(members); }

 private:
  template <class T>
  static BenchJson json_of(const T& value) {
    if constexpr (std::is_arithmetic_v<T> ||
                  OneOf<T, std::string, std::vector<double>, BenchJson>) {
      return value;
    } else {
      if constexpr (std::same_as<T, Spread>) {
        if (value.rounds.empty()) return {};
      }
      BenchJson json = BenchJson::object();
      Writer writer(json);
      visit_members(writer, value);
      return json;
    }
  }
  static BenchJson json_of(RowState state) { return name_of(state); }
  template <class T>
  static BenchJson json_of(const std::optional<T>& value) {
    return value ? json_of(*value) : BenchJson();
  }
  template <class T>
  static BenchJson json_of(const NamedValues<T>& values) {
    BenchJson json = BenchJson::object();
    for (const auto& [name, value] : values) json[name] = value;
    return json;
  }
  template <class T>
  requires OneOf<T, MovedBytes, RowResult>
  static BenchJson json_of(const std::vector<T>& values) {
    BenchJson json = BenchJson::array();
    for (const T& value : values) json.push_back(json_of(value));
    return json;
  }

  BenchJson& json_;
};

// Reads the members of an object; a member that is missing or null is unknown and stays as it is.
// An error names the member and `what`, whose member it is.
class Reader {
 public:
  Reader(const BenchJson& json, const std::string& where, std::string what)
      : json_(json), where_(where), what_(std::move(what)) {}

  template <class T, class... Rest>
  void visit(const char* name, T& value, Rest&... rest) {
    read_.insert(name);
    if (json_.contains(name) && !json_[name].is_null())
      take(json_[name], fmt::format("{} of {}", name, what_), value);
    if constexpr (sizeof...(rest) > 0) visit(rest...);
  }
  void visit_others(BenchJson& members) const {
    for (const auto& [name, value] : json_.items()) {
      if (!read_.contains(name)) members[name] = value;
    }
  }

 private:
  void require(bool good, const std::string& place) const {
    TESSERA_CHECK(good, ErrorCode::configuration,
                  "{}: is damaged: {} does not have the format of tessera bench; name another file",
                  where_, place);
  }
  template <class T>
  void take(const BenchJson& json, const std::string& place, T& value) const {
    if constexpr (std::same_as<T, BenchJson>) {
      value = json;
    } else if constexpr (std::is_arithmetic_v<T> || std::same_as<T, std::string>) {
      require(is_of_type<T>(json), place);
      json.get_to(value);
    } else {
      require(json.is_object(), place);
      Reader reader(json, where_, place);
      visit_members(reader, value);
    }
  }
  template <class T>
  static bool is_of_type(const BenchJson& json) {
    if constexpr (std::same_as<T, bool>) return json.is_boolean();
    if constexpr (std::same_as<T, std::string>) return json.is_string();
    if constexpr (std::same_as<T, double>) return json.is_number();
    constexpr bool count = std::is_signed_v<T>;  // the others are bytes
    return (count ? json.is_number_integer() : json.is_number()) && json.get<double>() >= 0 &&
           json.get<double>() <= (count ? most_count : most_bytes);
  }
  void take(const BenchJson& json, const std::string& place, RowState& state) const {
    const auto named = row_state_named(json.is_string() ? json.get<std::string>() : "");
    require(named.has_value(), place);
    state = named.value_or(state);
  }
  void take(const BenchJson& json, const std::string&, RowResult& row) const {
    const auto text = [&](const char* name) {
      return json.contains(name) && json[name].is_string();
    };
    TESSERA_CHECK(json.is_object() && text("id") && text("name") && text("status"),
                  ErrorCode::configuration, "{}: a row has no id, name or status", where_);
    take<RowResult>(json, json["name"], row);
    const std::string_view lacks = lacking(row);
    require(lacks.empty(), fmt::format("{} of {}", lacks, row.name));
  }
  template <class T>
  void take(const BenchJson& json, const std::string& place, std::optional<T>& value) const {
    take(json, place, value.emplace());
  }
  template <class T>
  void take(const BenchJson& json, const std::string& place, NamedValues<T>& values) const {
    require(json.is_object(), place);
    for (const auto& [name, member] : json.items())
      take(member, place, values.emplace_back(name, T()).second);
  }
  template <class T>
  void take(const BenchJson& json, const std::string& place, std::vector<T>& values) const {
    require(json.is_array(), place);
    for (const BenchJson& element : json) {
      T& value = values.emplace_back();
      if constexpr (std::same_as<T, double>) value = std::numeric_limits<double>::quiet_NaN();
      if (!std::same_as<T, double> || !element.is_null()) take(element, place, value);
    }
  }

  const BenchJson& json_;
  const std::string& where_;
  std::string what_;
  std::set<std::string> read_;
};

BenchJson object_in(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  BenchJson json = BenchJson::parse(stream, nullptr, false);
  return json.is_object() ? json : BenchJson::object();
}

}  // namespace

BenchJson report_json(const BenchReport& report) {
  BenchJson json = {{"format", bench_format}, {"version", bench_version}};
  Writer writer(json);
  visit_members(writer, report);
  return json;
}

BenchReport report_from(const BenchJson& json, const std::string& where) {
  BenchReport report;
  Reader reader(json, where, "the report");
  visit_members(reader, report);
  return report;
}

RowResult read_peer_row(const std::filesystem::path& file) {
  RowResult row;
  const BenchJson rows = object_in(file).value("rows", BenchJson());
  if (rows.is_array() && !rows.empty() && rows.front().is_object()) {
    const std::string where = file.string();
    Reader reader(rows.front(), where, "the row");
    visit_members(reader, row);
  }
  return row;
}

void read_memory(const std::filesystem::path& file, RowMemory& memory) {
  const BenchJson json = object_in(file);
  Reader(json, file.string(), "the run").visit("measured", memory.kinds);
  if (!memory.kinds) return;
  std::erase_if(*memory.kinds, [&](const auto& kind) {
    if (kind.first == "total") memory.measured = kind.second;
    return kind.first == "total";
  });
}

void read_summary(const std::filesystem::path& file, StepFigures& figures) {
  const BenchJson json = object_in(file);
  Reader(json, file.string(), "the run")
      .visit("collectives", figures.bytes_moved, "exposed_s", figures.exposed_s,
             "engine_s_per_unit", figures.engine_s_per_unit, "timeline", figures.timeline);
}

}  // namespace tessera::bench
