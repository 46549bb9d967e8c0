// GPT-2.
#pragma once

#include "models/gpt2/gpt2.h"
