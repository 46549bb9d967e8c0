// The formats of checkpoints, one function for each.
#pragma once

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

// Tessera's own step folders, with manifest and checksums.
const Format& full_format();
const Format& sharded_format();
// Hugging Face's folders of safetensors, and a safetensors file alone.
const Format& hugging_face_format();
// A folder of that format with quantised weights and their scales as its files have them.
std::unique_ptr<Source> open_as_stored(const std::filesystem::path& folder);
// Files of torch.save: state dicts alone, checkpoints with model and optimizer, and the folders
// that Hugging Face (pytorch_model.bin, numbered files with an index) and Accelerate
// (pytorch_model_fsdp.bin, optimizer.bin) make of them.
const Format& torch_format();
// verl's folders: a file of torch.save for each rank, with the rank's parts of the tensors
// (DTensors); read only.
const Format& verl_format();
// PyTorch Distributed Checkpoint: folders of .metadata and *.distcp, and Accelerate's pairs of them
// (pytorch_model_fsdp_0, optimizer_0).
const Format& dcp_format();
// Megatron-Core's torch_dist folders of GPT-2 and models of Llama's build, split into the tensors
// of transformers; read only.
const Format& megatron_format();
// DeepSpeed's ZeRO checkpoints (stages 1, 2 and 3), as documented by its zero_to_fp32.py; read
// only.
const Format& deepspeed_format();
// DeepSpeed's universal checkpoints, a file for each tensor.
const Format& universal_format();
// llm.c's model files: GPT-2's weights in fp32 or bf16, one file.
const Format& llmc_format();
// llama.cpp's GGUF files of Llama, Mistral, Qwen2, Qwen3, OLMo 2, SmolLM3, Phi-3 and GPT-2.
const Format& gguf_format();

}  // namespace tessera::checkpoint::formats
