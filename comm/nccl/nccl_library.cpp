// Loads NCCL with dlopen.
#include "comm/nccl/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace tessera::cuda {
namespace {

// NCCL counts 2.28.9 as 22809.
std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

NcclLibrary load() {
  NcclLibrary library;
  void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.text = dlerror();
    return library;
  }
#define TESSERA_NCCL_LOAD(name)                                                                  \
  library.functions.name = reinterpret_cast<decltype(&nccl##name)>(dlsym(handle, "nccl" #name)); \
  if (library.functions.name == nullptr) {                                                       \
    library.text = "libnccl.so.2 is too old: it has no nccl" #name " (2.18 is needed)";          \
    return library;                                                                              \
  }
  TESSERA_NCCL_FUNCTIONS(TESSERA_NCCL_LOAD)
#undef TESSERA_NCCL_LOAD
  int version = 0;
  if (library.functions.GetVersion(&version) != ncclSuccess) {
    library.text = "ncclGetVersion failed";
    return library;
  }
  library.loaded = true;
  library.text = version_text(version);
  Dl_info place{};
  if (dladdr(reinterpret_cast<void*>(library.functions.GetVersion), &place) != 0) {
    library.text += fmt::format(" ({})", place.dli_fname);
  }
  return library;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary library = load();
  return library;
}

}  // namespace tessera::cuda
