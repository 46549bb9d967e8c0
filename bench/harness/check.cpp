// One table with the types of a row's members, and the few members with members of their own.
#include "bench/harness/check.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/error.h"

namespace tessera::cli {
namespace {

constexpr double most_bytes = 9e18;  // the limit of a signed 64-bit number

enum class MemberKind { text, flag, number, positive, count, code, bytes, object, list };

bool is_of_kind(const BenchJson& value, MemberKind kind) {
  const auto within = [&](double least, double most) {
    return value.is_number() && value.get<double>() >= least && value.get<double>() <= most;
  };
  switch (kind) {
    case MemberKind::text:
      return value.is_string();
    case MemberKind::flag:
      return value.is_boolean();
    case MemberKind::number:
      return value.is_number();
    case MemberKind::positive:
      return value.is_number() && value.get<double>() > 0;
    case MemberKind::count:
      return value.is_number_integer() && within(0, 1e9);
    case MemberKind::code:
      return value.is_number_integer() && within(0, 255);
    case MemberKind::bytes:
      return within(0, most_bytes);
    case MemberKind::object:
      return value.is_object();
    case MemberKind::list:
      return value.is_array();
  }
  return false;
}

class ReportCheck {
 public:
  explicit ReportCheck(std::string where) : where_(std::move(where)) {}

  void require(bool whole, const std::string& what) const {
    TESSERA_CHECK(whole, ErrorCode::configuration,
                  "{}: is damaged: {} does not have the format of tessera bench; name another file",
                  where_, what);
  }
  // `name` may be absent or null if it is not `needed`.
  void member(const BenchJson& of, const std::string& what, const char* name, MemberKind kind,
              bool needed = false) const {
    const bool there = of.contains(name) && (needed || !of[name].is_null());
    if (there || needed)
      require(there && is_of_kind(of[name], kind), fmt::format("{} of {}", name, what));
  }
  void members(const BenchJson& of, const std::string& what,
               const std::vector<std::pair<const char*, MemberKind>>& kinds,
               bool needed = false) const {
    for (const auto& [name, kind] : kinds) member(of, what, name, kind, needed);
  }

  void row(const BenchJson& row) const;

 private:
  void rates(const BenchJson& row, const std::string& what) const;
  void details(const BenchJson& row, const std::string& what) const;

  std::string where_;
};

void ReportCheck::rates(const BenchJson& row, const std::string& what) const {
  const bool measured = row["status"] == "measured";
  for (const char* name : {"samples_per_s", "tokens_per_s", "step_s"}) {
    member(row, what, name, MemberKind::object, measured);
    if (!row[name].is_object()) continue;
    const std::string rate = fmt::format("{} of {}", name, what);
    members(row[name], rate,
            {{"median", MemberKind::positive},
             {"low", MemberKind::number},
             {"high", MemberKind::number},
             {"rounds", MemberKind::list}},
            true);
    require(!row[name]["rounds"].empty(), "rounds of " + rate);
    for (const BenchJson& round : row[name]["rounds"]) {
      require(is_of_kind(round, MemberKind::positive), "rounds of " + rate);
    }
  }
}

void ReportCheck::details(const BenchJson& row, const std::string& what) const {
  for (const auto& [axis, value] : row["axes"].items())
    require(value.is_string(), "axes of " + what);
  if (row["peer"].is_object()) {
    members(row["peer"], "peer of " + what,
            {{"name", MemberKind::text}, {"mode", MemberKind::text}}, true);
    require(!row["peer"].contains("compile") || row["peer"]["compile"].is_boolean(),
            "compile of " + what);
  }
  members(row["memory"], "memory of " + what,
          {{"planned", MemberKind::bytes},
           {"measured", MemberKind::bytes},
           {"resident", MemberKind::bytes}});
  for (const BenchJson& call : row["bytes_moved"]) {
    require(call.is_object(), "bytes_moved of " + what);
    member(call, "bytes_moved of " + what, "bytes", MemberKind::bytes, true);
  }
  if (row["products"].is_object()) {
    members(row["products"], "products of " + what,
            {{"step_s", MemberKind::number},
             {"best_flops_per_s", MemberKind::number},
             {"dtype", MemberKind::text},
             {"kernel", MemberKind::text}},
            true);
  }
  if (row["settings"].is_object()) {
    members(row["settings"], "settings of " + what,
            {{"steps", MemberKind::count},
             {"warmup", MemberKind::count},
             {"rounds", MemberKind::count}},
            true);
  }
  if (!row.contains("tessera")) return;
  require(row["tessera"].is_object() && row["tessera"].contains("memory"), "tessera of " + what);
  member(row["tessera"], what, "tokens_per_s", MemberKind::number, true);
}

void ReportCheck::row(const BenchJson& row) const {
  const std::string what = row["name"].get<std::string>();
  members(row, what,
          {{"status", MemberKind::text},
           {"reason", MemberKind::text},
           {"launcher", MemberKind::text},
           {"strategy", MemberKind::text},
           {"precision", MemberKind::text},
           {"mfu_formula", MemberKind::text},
           {"exit_code", MemberKind::code},
           {"world_size", MemberKind::count},
           {"axes", MemberKind::object},
           {"memory", MemberKind::object},
           {"bytes_moved", MemberKind::list},
           {"losses", MemberKind::list}},
          true);
  require(row["world_size"] != 0, "world_size of " + what);
  members(row, what,
          {{"variant", MemberKind::text},
           {"model", MemberKind::object},
           {"settings", MemberKind::object},
           {"peer", MemberKind::object},
           {"products", MemberKind::object},
           {"exposed_s", MemberKind::object},
           {"comm_bytes", MemberKind::bytes},
           {"speedup", MemberKind::number},
           {"efficiency", MemberKind::number},
           {"engine_s_per_unit", MemberKind::number},
           {"products_share", MemberKind::number},
           {"mfu", MemberKind::number}});
  rates(row, what);
  details(row, what);
}

void fill_in(BenchJson& object, const BenchJson& blank) {
  for (const auto& [name, value] : blank.items()) {
    if (!object.contains(name)) object[name] = value;
  }
}

}  // namespace

void check_bench_report(const std::string& where, BenchJson& report) {
  const ReportCheck check(where);
  check.members(report, "the report",
                {{"recipe", MemberKind::text}, {"machine", MemberKind::object}}, true);
  check.members(report, "the report",
                {{"command", MemberKind::text}, {"settings", MemberKind::object}});
  if (report.contains("settings") && report["settings"].is_object()) {
    const BenchJson& settings = report["settings"];
    for (const char* name : {"steps", "warmup", "rounds", "threads_per_rank"}) {
      if (settings.contains(name))
        check.member(settings, "the settings", name, MemberKind::count, true);
    }
  }
  BenchJson blank = bench_row_json(BenchRow(), "", "");
  blank["variant"] = nullptr;
  for (BenchJson& row : report["rows"]) {
    fill_in(row, blank);
    if (row["memory"].is_object()) fill_in(row["memory"], blank["memory"]);
    check.row(row);
  }
}

}  // namespace tessera::cli
