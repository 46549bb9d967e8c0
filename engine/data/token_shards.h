// Streams of several processes that are one corpus together.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/data/token_stream.h"

namespace tessera {

// "3/8". Error(usage) for anything else, and for a number outside 1 to the count.
TokenShard parse_token_shard(std::string_view text);

// The name that each process gives its stream: FOLDER/tokens-00003-of-00008.tokens.
std::filesystem::path token_shard_path(const std::filesystem::path& folder,
                                       const TokenShard& shard);

// The shards among these files. For a folder, those of its files that are named *.tokens. Empty if
// there is none. Error(data) if there are other files among them, or if a header is damaged.
std::vector<std::filesystem::path> find_token_shards(const std::vector<std::string>& names);

using TokenShardFile = std::pair<std::filesystem::path, TokenStreamFormat>;
// Sorts shards by their number. Error(data) unless they are all shards of one corpus, each once,
// with ids of one tokenizer. A shard without tokens may have any tokenizer.
void sort_token_shards(std::vector<TokenShardFile>& shards);

}  // namespace tessera
