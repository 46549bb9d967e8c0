// Names and descriptions of collectives.
#include "comm/call.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>

#include "base/error.h"

namespace tessera::comm {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::setup:
      return "setup";
    case Phase::forward:
      return "forward";
    case Phase::backward:
      return "backward";
    case Phase::reduce:
      return "reduce";
    case Phase::optimizer:
      return "optimizer";
    case Phase::checkpoint:
      return "checkpoint";
    case Phase::metrics:
      return "metrics";
    case Phase::other:
      return "other";
  }
  return "unknown";
}

std::string_view name_of(Op op) {
  switch (op) {
    case Op::none:
      return "nothing";
    case Op::all_gather:
      return "all_gather";
    case Op::reduce_scatter:
      return "reduce_scatter";
    case Op::all_reduce:
      return "all_reduce";
    case Op::all_to_all:
      return "all_to_all";
    case Op::exchange:
      return "exchange";
    case Op::broadcast:
      return "broadcast";
    case Op::barrier:
      return "barrier";
    case Op::allocate:
      return "allocate";
    case Op::split:
      return "split";
    case Op::duplicate:
      return "duplicate";
    case Op::acquire:
      return "acquire";
    case Op::send:
      return "send";
  }
  return "unknown";
}

void Call::set_name(std::string_view text) {
  name.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), name.size() - 1), name.begin());
  name_hash = 14695981039346656037u;  // FNV-1a: the same in every process
  for (const char character : text) {
    name_hash = (name_hash ^ static_cast<unsigned char>(character)) * 1099511628211u;
  }
}

Call call_of_message(std::size_t bytes, int receiver, Tag tag) {
  Call call(Op::send, tag);
  call.bytes = bytes;
  call.root = receiver;
  return call;
}

Call with_reduction(Call call, const Reduction& reduction) {
  call.in_dtype = reduction.in_dtype;
  call.out_dtype = reduction.out_dtype;
  call.accumulate = reduction.accumulate;
  call.group = reduction.group;
  call.scale_bits = std::bit_cast<std::uint32_t>(reduction.scale);
  return call;
}

std::string describe(const Call& call) {
  std::string text(name_of(call.op));
  if (call.name[0] != '\0') text += fmt::format(" of '{}'", call.name.data());
  std::string details;
  const auto add = [&](const std::string& detail) {
    if (!details.empty()) details += ", ";
    details += detail;
  };
  if (call.buffer != 0 || call.op == Op::allocate || call.op == Op::send)
    add(fmt::format("{} bytes", call.bytes));
  if (call.op == Op::allocate) add(call.sharing == Sharing::one_copy ? "one copy" : "per rank");
  if (call.op == Op::reduce_scatter || call.op == Op::all_reduce) {
    add(fmt::format("{} to {}", tessera::name_of(call.in_dtype), tessera::name_of(call.out_dtype)));
    add(fmt::format("scale {}", std::bit_cast<float>(call.scale_bits)));
    add(fmt::format("group {}", call.group));
    if (call.accumulate) add("accumulate");
  }
  if (call.root >= 0) add(fmt::format("{} {}", call.op == Op::send ? "to" : "root", call.root));
  if (call.part != 0) add(fmt::format("part {}", call.part));
  if (!details.empty()) details += "; ";
  const std::string rate =
      call.learning_rate == 0 ? "" : fmt::format(", learning rate {}", call.learning_rate);
  return fmt::format("{} ({}step {}, unit {}, {}{})", text, details, call.step, call.unit,
                     name_of(call.phase), rate);
}

}  // namespace tessera::comm
