// The list of live faults.
#include "emulator/cuda/drop_waits.h"

#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace tessera::emulator {
namespace {

struct Faults {
  std::shared_mutex mutex;  // lookups share it, and so order no host threads
  std::vector<DropWaits*> all;
};

Faults& faults() {
  static Faults the_faults;
  return the_faults;
}

}  // namespace

DropWaits::DropWaits(std::string waiting_stream, std::string recording_stream)
    : waiting_(std::move(waiting_stream)), recording_(std::move(recording_stream)) {
  const std::unique_lock lock(faults().mutex);
  faults().all.push_back(this);
}

DropWaits::~DropWaits() {
  const std::unique_lock lock(faults().mutex);
  std::erase(faults().all, this);
}

bool drops_wait(const std::string& waiting, const std::string& recording) {
  const std::shared_lock lock(faults().mutex);
  for (DropWaits* fault : faults().all) {
    if (fault->waiting_ == waiting && fault->recording_ == recording) {
      ++fault->count_;
      return true;
    }
  }
  return false;
}

}  // namespace tessera::emulator
