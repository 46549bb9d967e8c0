// A small file system that a test mounts where it has the permission.
#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>

namespace tessera::testing {

class SmallDisk {
 public:
  // `size` in the syntax of mount(8): "256k".
  SmallDisk(const std::string& folder, const std::string& size)
      : folder_(folder), options_("size=" + size) {
    std::filesystem::create_directory(folder);
    mounted_ = ::mount("tessera-test", folder.c_str(), "tmpfs", 0, options_.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }
  // After this call nothing can be written there, not even by root.
  [[nodiscard]] bool make_read_only() const {
    return ::mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, options_.c_str()) ==
           0;
  }

 private:
  std::string folder_;
  std::string options_;
  bool mounted_ = false;
};

}  // namespace tessera::testing
