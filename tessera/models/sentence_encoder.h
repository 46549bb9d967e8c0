// Sentence encoders.
#pragma once

#include "models/sentence_encoder/sentence_encoder.h"
