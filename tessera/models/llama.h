// Llama and the models of its build: Mistral, Qwen2, Qwen3, OLMo 2, SmolLM3, Phi-3, Gemma 3,
// Mixtral, Qwen3-MoE, gpt-oss.
#pragma once

#include "models/llama/llama.h"
