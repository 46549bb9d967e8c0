// Lists of pending copies.
#include "emulator/scheduler/asynchronous_copies.h"

namespace tessera::emulator {

void AsynchronousCopyStore::add(AsynchronousCopies& copies, void* shared, const void* global,
                                std::size_t bytes, std::size_t valid) {
  if (free_ == nullptr) {
    for (AsynchronousCopy& copy : chunks_.emplace_back()) {
      copy.next = free_;
      free_ = &copy;
    }
  }
  AsynchronousCopy* copy = free_;
  free_ = copy->next;
  *copy = {shared, global, bytes, valid, copies.group, nullptr};
  (copies.first == nullptr ? copies.first : copies.last->next) = copy;
  copies.last = copy;
}

bool AsynchronousCopyStore::take(AsynchronousCopies& copies, unsigned pending,
                                 AsynchronousCopy& copy) {
  AsynchronousCopy* oldest = copies.first;
  if (oldest == nullptr || oldest->group + pending >= copies.group) return false;
  copy = *oldest;
  copies.first = oldest->next;
  oldest->next = free_;
  free_ = oldest;
  return true;
}

}  // namespace tessera::emulator
