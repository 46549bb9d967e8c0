// The version as text, built from its numbers.
#include "base/version.h"

#define TESSERA_TEXT_OF(number) #number
#define TESSERA_JOIN(major, minor, patch) \
  TESSERA_TEXT_OF(major) "." TESSERA_TEXT_OF(minor) "." TESSERA_TEXT_OF(patch)

namespace tessera {

const char* version() noexcept {
  return TESSERA_JOIN(TESSERA_VERSION_MAJOR, TESSERA_VERSION_MINOR, TESSERA_VERSION_PATCH);
}

}  // namespace tessera
