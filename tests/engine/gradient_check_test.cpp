// The gradient of every op, on the CPU.
#include "engine/gradient_cases.h"
