// Models from folders.
#pragma once

#include "models/load/load.h"
#include "models/load/weights.h"
