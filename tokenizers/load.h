// Loads tokenizers from their files.
#pragma once

#include <memory>
#include <string>

#include "engine/data/tokenizer.h"

namespace tessera::tokenizers {

// "bytes"; a tokenizer.json; a vocab.txt of BERT; a SentencePiece .model; a tekken.json of Mistral;
// a .tiktoken (or tiktoken.model); a vocab.json with merges.txt; or a folder that holds one of
// them, in this order of preference, with its settings beside it (tokenizer_config.json,
// special_tokens_map.json). Throws Error(configuration) for a name that is none of these,
// Error(data) for a file that is damaged or has unsupported contents, by name.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name_or_path);

// True if a folder holds one of those files.
bool is_tokenizer_folder(const std::string& folder);

}  // namespace tessera::tokenizers
