// Hugging Face's folders of safetensors, and a safetensors file alone.
#pragma once

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

const Format& hugging_face_format();

}  // namespace tessera::checkpoint::formats
