// The backend of planned devices: memory is counted and never touched, work is forgotten.
#pragma once

#include "engine/backend.h"

namespace tessera {

const Backend& planned_backend();

}  // namespace tessera
