// Moves the tensors of a plan from source to sink: one thread reads and converts, another writes,
// and a few blocks of memory pass between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/convert/convert.h"
#include "checkpoint/convert/plan.h"

namespace tessera::checkpoint {

// The bytes of the headers, indexes, manifests and pickles of a file, or of a folder and the files
// in it, by their stated sizes: what opening it reads into memory. Reads only small zip
// directories. A damaged file counts as zero; opening it reports the damage.
std::uint64_t header_bytes(const std::filesystem::path& path);

// Size of the blocks, which together stay within what is left of `max_memory` above `before` bytes;
// none is larger than the largest tensor. Throws Error(out_of_memory) if too little is left.
std::size_t block_bytes_for(std::uint64_t max_memory, std::uint64_t before,
                            const formats::Source& source, const ConversionPlan& plan);

// Returns the tensors with their checksums. Adds a note for each tensor whose values did not fit
// the narrower dtype.
std::vector<ConvertedTensor> stream_tensors(formats::Source& source, formats::Sink& sink,
                                            const ConversionPlan& plan,
                                            const ConvertOptions& options, std::size_t block_bytes,
                                            std::vector<std::string>& notes);

// Reads `written` again and compares every tensor with what was sent to the sink.
void compare_tensors(formats::Source& written, const std::vector<ConvertedTensor>& sent,
                     const ConvertOptions& options, std::size_t block_bytes);

}  // namespace tessera::checkpoint
