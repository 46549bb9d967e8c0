// LoRA adapters of a folder.
#pragma once

#include "models/load/adapter.h"
#include "models/load/magnitudes.h"
