// The thread's current kind of memory.
#include "engine/device/memory_kind.h"

namespace tessera {
namespace {
thread_local MemoryKind thread_memory_kind = MemoryKind::activations;
}

std::string_view name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::parameters:
      return "parameters";
    case MemoryKind::gradients:
      return "gradients";
    case MemoryKind::optimizer:
      return "optimizer";
    case MemoryKind::communication:
      return "communication";
    case MemoryKind::activations:
      return "activations";
    case MemoryKind::other:
      return "other";
  }
  return "unknown";
}

MemoryKind current_memory_kind() {
  return thread_memory_kind;
}

MemoryScope::MemoryScope(MemoryKind kind) : previous_(thread_memory_kind) {
  thread_memory_kind = kind;
}

MemoryScope::~MemoryScope() {
  thread_memory_kind = previous_;
}

}  // namespace tessera
