// The entry point for libFuzzer: TESSERA_FUZZ_TARGET names the parser.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "fuzz/targets.h"

namespace {

const tessera::fuzz::FuzzTarget* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* wanted = std::getenv("TESSERA_FUZZ_TARGET");
  for (const auto& target : tessera::fuzz::fuzz_targets()) {
    if (wanted != nullptr && std::string_view(wanted) == target.name) chosen = &target;
  }
  if (chosen != nullptr) return 0;
  std::fprintf(stderr, "TESSERA_FUZZ_TARGET must be one of:");
  for (const auto& target : tessera::fuzz::fuzz_targets()) std::fprintf(stderr, " %s", target.name);
  std::fprintf(stderr, "\n");
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  chosen->run({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
