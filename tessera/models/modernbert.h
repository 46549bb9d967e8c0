// ModernBERT encoders.
#pragma once

#include "models/modernbert/modernbert.h"
