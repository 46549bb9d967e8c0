// Runs every parser with its corpus, unchanged and with the same damage each time: an ordinary
// test, for any compiler.
//   fuzz_corpus FOLDER     FOLDER has a folder for each target
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "fuzz/targets.h"

namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Runs the bytes, their prefixes, and copies with single bytes changed.
std::size_t replay(const tessera::fuzz::FuzzTarget& target, const std::string& bytes) {
  std::mt19937 random(1);
  std::size_t runs = 0;
  target.run(bytes);
  for (std::size_t i = 0; i < 200 && !bytes.empty(); ++i, runs += 2) {
    target.run(std::string_view(bytes).substr(0, random() % bytes.size()));
    std::string changed = bytes;
    changed[random() % changed.size()] = static_cast<char>(random());
    target.run(changed);
  }
  return runs + 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_corpus FOLDER\n");
    return 2;
  }
  for (const auto& target : tessera::fuzz::fuzz_targets()) {
    std::size_t files = 0;
    std::size_t runs = 0;
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / target.name;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      runs += replay(target, contents(entry.path()));
      ++files;
    }
    std::printf("%s: %zu files, %zu runs\n", target.name, files, runs);
    if (files == 0) {
      std::fprintf(stderr, "%s has no corpus\n", target.name);
      return 1;
    }
  }
  return 0;
}
