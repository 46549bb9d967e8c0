// Checks of the arguments of a collective that all communicators share. Each function throws a
// logic_error that names the call and the buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/communicator.h"

namespace tessera::comm {

// Returns the bytes of all ranges.
std::size_t check_all_gather(const Buffer& buffer, const std::vector<GatheredRange>& ranges,
                             int ranks);
void check_reduce_scatter(const Buffer& buffer, const std::vector<ReducedRange>& ranges,
                          const Reduction& reduction);
void check_all_reduce(const Buffer& buffer, std::int64_t count, const void* out,
                      const Reduction& reduction);
void check_broadcast(std::string_view communicator, int root, int ranks);
// The call of a message, the same on both sides. Throws when `peer` is not another rank.
Call call_of_message(std::string_view communicator, int rank, int peer, int ranks,
                     std::size_t bytes, bool receives, Tag tag);

// `call` with the values that the ranks must agree on in a reduction.
Call with_reduction(Call call, const Reduction& reduction);

}  // namespace tessera::comm
