// DistilBERT encoders.
#pragma once

#include "models/distilbert/distilbert.h"
