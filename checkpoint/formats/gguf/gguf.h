// Functions that the reader and the writer of GGUF files share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint/formats/format.h"
#include "checkpoint/formats/gguf/gguf_config.h"

namespace tessera::checkpoint::formats {

// The row of a GGUF tensor for a row of Hugging Face's, among heads of `head_rows` rows.
constexpr std::int64_t gguf_row(std::int64_t row, std::int64_t head_rows) {
  const std::int64_t within = row % head_rows;
  const std::int64_t half = head_rows / 2;
  return row - within + within % half * 2 + within / half;
}

// Rows of a head of this tensor, whose rows are those of all heads. Error(checkpoint) that begins
// with `what` if heads do not divide them into pairs.
std::int64_t gguf_head_rows(const GgufModule& module, const GgufHeads& heads, std::int64_t rows,
                            const std::string& what);

// True for tensors whose rows are in another order in GGUF.
inline bool is_permuted(const GgufName& name) {
  return name.module->order == GgufOrder::query_heads || name.module->order == GgufOrder::key_heads;
}
inline bool is_transposed(const GgufName& name) {
  return name.module->order == GgufOrder::transposed && name.is_weight;
}

Encodings gguf_encodings(const Contents& contents, const std::string& type);
std::unique_ptr<Sink> create_gguf(const std::filesystem::path& path, const Contents& contents,
                                  const WriteOptions& options);

}  // namespace tessera::checkpoint::formats
