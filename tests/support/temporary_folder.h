// A temporary folder for a test.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace tessera::testing {

// Removed with its contents, even if a test has removed permissions.
class TemporaryFolder {
 public:
  enum class Place { on_disk, in_memory };  // in memory where the machine supports it

  explicit TemporaryFolder(Place place = Place::on_disk) {
    const bool memory = place == Place::in_memory && ::access("/dev/shm", W_OK) == 0 &&
                        std::getenv("TMPDIR") == nullptr;
    const auto base =
        memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
    std::string name = (base / "tessera-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;  // a failed test may still have writers in it
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  // Writes a file of the folder and returns its path.
  std::filesystem::path write(const std::string& name, const std::string& contents) const {
    std::ofstream(path_ / name, std::ios::binary) << contents;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera::testing
