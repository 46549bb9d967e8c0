// Tessera's own step folders, with manifest and checksums: full and sharded.
#pragma once

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

const Format& full_format();
const Format& sharded_format();

}  // namespace tessera::checkpoint::formats
