// T5: its encoder, and the encoder with the decoder.
#pragma once

#include "models/t5/t5.h"
#include "models/t5/t5_generation.h"
