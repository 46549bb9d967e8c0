// Tokenizers by the files that they come in.
#pragma once

#include <memory>
#include <string>

#include "engine/data/tokenizer.h"

namespace tessera::tokenizers {

// "bytes"; a tokenizer.json; a vocab.txt of BERT; a SentencePiece .model; or a folder that holds
// one of them, looked for in this order, and beside it what says how to use it
// (tokenizer_config.json, special_tokens_map.json). Throws Error(configuration) for a name that is
// none of these, Error(data) for a file that is damaged or holds what is not supported, by name.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name_or_path);

// Whether a folder holds one of those files.
bool is_tokenizer_folder(const std::string& folder);

}  // namespace tessera::tokenizers
