// Loads the library, detects its interface, and implements the parts that both interfaces share.
#include "comm/mpi/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>

#include "comm/mpi/calls.h"

namespace tessera::comm {
namespace {

// A call that does not return must not keep the process from ending.
constexpr std::chrono::seconds time_for_calls{1};

constexpr const char* library_variable = "TESSERA_MPI_LIBRARY";

bool is_in_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// Names for Open MPI 4 and 5; for MPICH and Intel MPI, for Debian's MPICH, for Cray's.
std::vector<std::string> library_names() {
  if (is_in_environment(library_variable)) return {std::getenv(library_variable)};
  std::vector<std::string> names{"libmpi.so.40", "libmpi.so.12", "libmpich.so.12",
                                 "libmpi_cray.so.12"};
  const bool of_mpich = is_in_environment("PMI_RANK") && !is_in_environment("OMPI_COMM_WORLD_RANK");
  if (of_mpich) names = {"libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12", "libmpi.so.40"};
  return names;
}

// The library stays loaded: MPI has its own threads and handlers.
void* open_library(std::string_view wanted_by, std::string_view instead) {
  // A program that is linked with a library must use that one: handles of another have no meaning
  // in it.
  if (dlsym(RTLD_DEFAULT, "MPI_Init_thread") != nullptr) return RTLD_DEFAULT;
  std::string reasons;
  for (const std::string& name : library_names()) {
    // Open MPI's plug-ins look for its symbols.
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library != nullptr) return library;
    reasons += (reasons.empty() ? "" : "; ") + std::string(dlerror());
  }
  fail(ErrorCode::configuration,
       "{} needs MPI's library: {}; install Open MPI or MPICH, name its library in {}, or {}",
       wanted_by, reasons, library_variable, instead);
}

// The library's version text, which is available before MPI is initialised.
std::string version_text(void* library) {
  auto* version = reinterpret_cast<int (*)(char*, int*)>(dlsym(library, "MPI_Get_library_version"));
  if (version == nullptr) return "one without MPI_Get_library_version";
  std::array<char, 8193> text{};  // the longest of MPICH's
  int length = 0;
  version(text.data(), &length);
  return text.data();
}

// "MPICH Version:      4.0.2\n..." -> "MPICH Version: 4.0.2"; "Open MPI v4.1.4, package..." ->
// "Open MPI v4.1.4".
std::string short_version(const std::string& text) {
  std::string words;
  for (const char letter : text.substr(0, text.find_first_of(",\n"))) {
    const bool space = letter == ' ' || letter == '\t';
    if (!space) words += letter;
    if (space && !words.empty() && words.back() != ' ') words += ' ';
  }
  return words;
}

std::unique_ptr<Mpi> load(std::string_view wanted_by, std::string_view instead) {
  void* library = open_library(wanted_by, instead);
  const std::string version = version_text(library);
  if (dlsym(library, "ompi_mpi_comm_world") != nullptr) {
    return std::make_unique<MpiCalls<OpenMpiInterface>>(library, short_version(version));
  }
  for (const char* name : {"MPICH", "Intel(R) MPI", "MVAPICH"}) {
    if (version.find(name) == std::string::npos) continue;
    return std::make_unique<MpiCalls<MpichInterface>>(library, short_version(version));
  }
  fail(ErrorCode::configuration,
       "{} found an MPI library with neither Open MPI's nor MPICH's binary interface ('{}'); name "
       "another in {}, or {}",
       wanted_by, short_version(version), library_variable, instead);
}

}  // namespace

Mpi::Turn::Turn(Mpi& mpi, bool alone) {
  if (alone) {
    alone_ = std::unique_lock(mpi.calls_);
  } else {
    together_ = std::shared_lock(mpi.calls_);
  }
  TESSERA_CHECK(!mpi.given_up_.load(), ErrorCode::rank_failed,
                "MPI is not called any more after a failure");
}

void Mpi::give_up() {
  given_up_.store(true);
  const std::unique_lock lock(calls_, time_for_calls);  // until the calls under way have returned
}

Mpi& mpi_library(std::string_view wanted_by, std::string_view instead) {
  static const std::unique_ptr<Mpi> library = load(wanted_by, instead);
  return *library;
}

}  // namespace tessera::comm
