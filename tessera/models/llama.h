// Llama, Mistral and Qwen2.
#pragma once

#include "models/llama/llama.h"
