// Collected from the build, /proc and the libraries.
#include "planner/environment.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <CLI/Version.hpp>
#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/parallel.h"
#include "base/version.h"
#include "comm/nccl.h"
#include "engine/device/backend.h"
#include "kernels/cpu/description.h"
#include "launch/launch.h"

namespace tessera::planner {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The first line "name : value" of a file in /proc.
std::string proc_value(const char* file, std::string_view name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t first = line.find_first_not_of(" \t", colon + 1);
    return first == std::string::npos ? "" : line.substr(first);
  }
  return "";
}

std::int64_t memory_bytes(std::string_view name) {
  std::istringstream stream(proc_value("/proc/meminfo", name));
  std::int64_t kibibytes = 0;
  stream >> kibibytes;
  return kibibytes * 1024;
}

OrderedJson cpu(const kernels::cpu::Description& description) {
  std::istringstream stream(proc_value("/proc/cpuinfo", "flags"));
  const std::set<std::string> flags{std::istream_iterator<std::string>(stream), {}};
  OrderedJson features = OrderedJson::object();
  for (const char* name : {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
                           "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"}) {
    features[name] = flags.contains(name);
  }
  return {{"model", proc_value("/proc/cpuinfo", "model name")},
          {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"usable_cores", launcher::usable_cores()},
          {"bf16", description.bf16_products},
          {"features", features}};
}

// A part of the build, and the reason why it cannot be used here (empty: it can).
OrderedJson part(bool built, std::string_view note) {
  return {{"built", built}, {"note", note}};
}

OrderedJson gpus() {
  OrderedJson list = OrderedJson::object();
  for (const DeviceDescription& gpu : backend_of(DeviceType::cuda).describe()) {
    list[gpu.device.to_string()] =
        fmt::format("{}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB", gpu.name,
                    gpu.compute_capability / 10, gpu.compute_capability % 10, gpu.multiprocessors,
                    static_cast<double>(gpu.memory_bytes) / (1 << 30));
  }
  return list;
}

std::string compiler() {
#ifdef __clang__
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string value_text(const OrderedJson& value) {
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

OrderedJson environment_report() {
  const kernels::cpu::Description description = kernels::cpu::describe();
  utsname system{};
  TESSERA_SYSTEM(::uname(&system));
  OrderedJson result;
  result["tessera"] = {
      {"version", version()},
      {"compiler", compiler()},
      {"system", fmt::format("{} {} {}", system.sysname, system.release, system.machine)}};
  result["cpu"] = cpu(description);
  result["threads"] = {{"compute_threads", compute_threads()},
                       {"rule",
                        "TESSERA_NUM_THREADS, else OMP_NUM_THREADS, else usable cores / "
                        "LOCAL_WORLD_SIZE; a rank's side streams are "
                        "further threads that sleep while they have nothing to do"}};
  result["memory"] = {{"total_bytes", memory_bytes("MemTotal")},
                      {"available_bytes", memory_bytes("MemAvailable")}};
  result["libraries"] = {
      {"oneDNN", description.onednn_version},
      {"oneDNN instructions", description.onednn_isa},
      {"Highway", description.highway_version},
      {"Highway target", description.highway_target},
      {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                    NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"fmt",
       fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"CLI11", CLI11_VERSION}};
  const Backend& cuda = backend_of(DeviceType::cuda);
  const comm::NcclStatus nccl = comm::nccl_status();
  result["gpus"] = gpus();
  result["parts"] = {
      {"communicators",
       fmt::format("local, shm, shm+tcp, shm+mpi{}", nccl.available ? ", nccl" : "")},
      {"CUDA", part(cuda.in_build(), cuda.unavailable_reason())},
      {"cuBLASLt", part(cuda.in_build(), cuda.matrix_products())},
      {"cuDNN", part(cuda.in_build(), cuda.attention())},
      {"NCCL", part(nccl.in_build, nccl.text)},
      {"MPI", part(true, "loaded with TESSERA_BACKEND=shm+mpi or TESSERA_BOOTSTRAP=mpi")},
      {"encryption", part(true, "between hosts over shm+tcp, with TESSERA_ENCRYPT=1")}};
  return result;
}

std::string environment_text(const OrderedJson& environment) {
  std::string text;
  for (const auto& [title, section] : environment.items()) {
    text += title + (section.empty() ? ": none\n" : "\n");
    for (const auto& [name, value] : section.items()) {
      std::string shown;
      if (name == "features") {
        for (const auto& [feature, has] : value.items()) {
          if (has.get<bool>()) shown += (shown.empty() ? "" : " ") + feature;
        }
      } else if (value.is_object()) {
        shown = value["built"].get<bool>() ? "built" : "not built";
        if (const std::string note = value_text(value["note"]); !note.empty()) {
          shown += fmt::format(" ({})", note);
        }
      } else if (name.ends_with("_bytes")) {
        shown = fmt::format("{:.1f} GiB", value.get<double>() / (1 << 30));
      } else {
        shown = value_text(value);
      }
      text += fmt::format("  {:<20} {}\n",
                          name.ends_with("_bytes") ? name.substr(0, name.size() - 6) : name, shown);
    }
  }
  return text;
}

}  // namespace tessera::planner
