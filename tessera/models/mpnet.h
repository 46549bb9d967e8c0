// MPNet encoders.
#pragma once

#include "models/mpnet/mpnet.h"
