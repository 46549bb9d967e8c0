// Loads with dlopen().
#include "engine/data/compression/codec_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace tessera {

CodecLibrary::CodecLibrary(const char* file, const char* package)
    : file_(file), object_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
  if (object_ != nullptr) return;
  const char* const reason = dlerror();
  fail(ErrorCode::configuration,
       "this data is compressed, and {} cannot be loaded ({}); install it (Debian: {})", file,
       reason != nullptr ? reason : "unknown", package);
}

void* CodecLibrary::symbol(const char* name) const {
  void* const found = dlsym(object_, name);
  TESSERA_CHECK(found != nullptr, ErrorCode::configuration,
                "{} has no function {}; install another version", file_, name);
  return found;
}

}  // namespace tessera
