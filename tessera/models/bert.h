// BERT encoders.
#pragma once

#include "models/bert/bert.h"
