// The architectures by name.
#pragma once

#include "models/registry/registry.h"
