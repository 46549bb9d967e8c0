// The description of a collective that a rank has entered. Its peers compare it, and messages print
// it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/communicator.h"

namespace tessera::comm {

enum class Op : std::uint8_t {
  none,
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  exchange,
  broadcast,
  barrier,
  allocate,
  split,
  duplicate,
  acquire,
  send,  // and its receive
};
std::string_view name_of(Op op);

// Lies in shared memory, so it is plain data. Two ranks agree when all fields are equal.
struct Call {
  Op op = Op::none;
  Phase phase = Phase::other;
  DType in_dtype = DType::float32;
  DType out_dtype = DType::float32;
  bool accumulate = false;
  Sharing sharing = Sharing::one_copy;
  std::uint32_t unit = 0;
  std::uint64_t step = 0;
  // The size of the buffer's region, of what an all_reduce sums, or of a piece of all_to_all.
  std::uint64_t bytes = 0;
  std::uint64_t buffer = 0;  // the buffer's number in its communicator, from 1
  std::uint32_t part = 0;    // of a call that takes several rounds
  std::int32_t group = 0;
  std::int32_t root = -1;  // of a send: the receiver
  std::uint32_t scale_bits = 0;
  double learning_rate = 0;     // Tag::learning_rate
  std::uint64_t name_hash = 0;  // of the whole name; `name` may be cut
  std::array<char, 40> name{};

  Call() = default;
  Call(Op op_of_call, Tag tag) : op(op_of_call) { set_tag(tag); }
  void set_tag(Tag tag) {
    phase = tag.phase;
    unit = tag.unit;
    step = tag.step;
    learning_rate = tag.learning_rate;
  }
  void set_name(std::string_view text);

  friend bool operator==(const Call&, const Call&) = default;
};

// The call of a message, the same on both sides.
Call call_of_message(std::size_t bytes, int receiver, Tag tag);
// `call` with the values that the ranks must agree on in a reduction.
Call with_reduction(Call call, const Reduction& reduction);

// "all_gather of 'block.0' (1024 bytes; step 3, unit 1, forward)".
std::string describe(const Call& call);

}  // namespace tessera::comm
