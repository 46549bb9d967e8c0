// Runs one wrong kernel on the emulator:
//   planted_kernel_bugs --list      a line for each: name, and the signs that the plain, the
// address
//                                   and the thread build must show
//   planted_kernel_bugs NAME        exits 0 when nothing is detected, 3 when the numbers are wrong
//                                   and 4 when the launch is refused; reports end the process
#include <cstdio>
#include <cstring>
#include <span>

#include "emulator/planted_barrier_bugs.h"
#include "emulator/planted_bug.h"
#include "emulator/planted_clean_kernels.h"
#include "emulator/planted_copy_bugs.h"
#include "emulator/planted_memory_bugs.h"
#include "emulator/planted_warp_bugs.h"

namespace tessera::testing {
namespace {

constexpr int exit_usage = 2;
constexpr int exit_wrong_numbers = 3;
constexpr int exit_refused = 4;

const char* name_of(Sign sign) {
  switch (sign) {
    case Sign::none:
      return "-";
    case Sign::numbers:
      return "numbers";
    case Sign::report:
      return "report";
    case Sign::sanitizer:
      return "sanitizer";
    case Sign::refused:
      return "refused";
  }
  return "?";
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto* cases :
       {&barrier::cases(), &warp::cases(), &memory::cases(), &copy::cases(), &clean::cases()}) {
    all.insert(all.end(), cases->begin(), cases->end());
  }
  return all;
}

int list() {
  for (const Case& one : all_cases()) {
    std::printf("%s %s %s %s\n", one.name, name_of(one.expected.plain),
                name_of(one.expected.address), name_of(one.expected.thread));
  }
  return 0;
}

int run(const Case& one) {
  try {
    if (one.run()) return 0;
    std::printf("wrong numbers\n");
    return exit_wrong_numbers;
  } catch (const Refused& refused) {
    std::printf("refused: error %d\n", static_cast<int>(refused.error));
    return exit_refused;
  }
}

int main_with(std::span<char*> arguments) {
  if (arguments.size() == 2 && std::strcmp(arguments[1], "--list") == 0) return list();
  if (arguments.size() == 2) {
    for (const Case& one : all_cases()) {
      if (std::strcmp(arguments[1], one.name) == 0) return run(one);
    }
  }
  std::fprintf(stderr, "usage: planted_kernel_bugs --list | NAME\n");
  return exit_usage;
}

}  // namespace
}  // namespace tessera::testing

int main(int count, char** arguments) {
  return tessera::testing::main_with({arguments, static_cast<std::size_t>(count)});
}
