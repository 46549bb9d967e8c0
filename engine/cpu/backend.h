// The CPU's backend.
#pragma once

#include "engine/device/backend.h"

namespace tessera {

const Backend& cpu_backend();

}  // namespace tessera
