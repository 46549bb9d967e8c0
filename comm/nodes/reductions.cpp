// Sums over several nodes, in the order of a sum within one: a rank gets each node's part of its
// sums from its counterpart there, piece by piece, while it sums the pieces that have arrived.
// Contributions may travel encoded; sums do not.
#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "comm/nodes/communicator.h"
#include "comm/nodes/pieces.h"
#include "comm/nodes/travelling.h"
#include "engine/device/launch.h"
#include "engine/device/queue.h"

namespace tessera::comm {
namespace {

// all_reduce works in pieces of this size; the node's ranks meet between them.
constexpr std::size_t reduced_bytes = nodes_sums_bytes / 2;

std::size_t bytes_for(std::int64_t count, DType dtype) {
  return static_cast<std::size_t>(count) * size_of(dtype);
}

std::byte* at_element(void* memory, std::int64_t index, DType dtype) {
  return static_cast<std::byte*>(memory) + bytes_for(index, dtype);
}

void sum_ranks(const std::vector<const void*>& sources, int group, void* out, std::int64_t count,
               DType in_dtype, const Reduction& reduction) {
  TESSERA_LAUNCH(Device::cpu(), reduce_ranks,
                 {.in = sources.data(),
                  .ranks = static_cast<int>(sources.size()),
                  .group = group,
                  .out = out,
                  .n = count,
                  .in_dtype = in_dtype,
                  .out_dtype = reduction.out_dtype,
                  .scale = reduction.scale,
                  .accumulate = reduction.accumulate});
}

// out (+)= scale * sum, for a complete sum.
void finish_sum(const void* sum, void* out, std::int64_t count, DType wide,
                const Reduction& reduction) {
  if (size_of(reduction.out_dtype) >= size_of(wide)) {
    return sum_ranks({sum}, 1, out, count, wide, reduction);
  }
  TESSERA_LAUNCH(Device::cpu(), cast,
                 {.in = sum,
                  .out = out,
                  .n = count,
                  .in_dtype = wide,
                  .out_dtype = reduction.out_dtype,
                  .scale = reduction.scale,
                  .accumulate = reduction.accumulate});
}

// The reduction that only sums; the caller scales and adds later.
Reduction partial_of(const Reduction& reduction) {
  return {.in_dtype = reduction.in_dtype,
          .out_dtype = wide_of(reduction.in_dtype),
          .wire = reduction.wire};
}

}  // namespace

class NodesCommunicator::Reducing {
 public:
  Reducing(NodesCommunicator& communicator, const SharedBuffer& buffer, const Reduction& reduction)
      : comm_(communicator),
        topology_(communicator.topology_),
        transport_(*communicator.transport_),
        buffer_(buffer),
        reduction_(reduction),
        wide_(wide_of(reduction.in_dtype)),
        plan_(sum_over_nodes(topology_, reduction.group, {reduction.in_dtype, reduction.wire})),
        travelling_(plan_.travelling),
        largest_(travelling_.piece()),
        scratch_(reduction_scratch(topology_, plan_)) {
    divide_scratch();
  }

  // Collective over the nodes. The peers' ranges are known: `of` returns them by rank.
  void run(const std::vector<ReducedRange>& mine,
           const std::function<const std::vector<Range>&(int)>& of, const Call& call) {
    wanted_.emplace(mine, largest_, travelling_.grid());
    for (const int client : topology_.clients()) {
      clients_.push_back(
          {client, Pieces<std::vector<Range>>(of(client), largest_, travelling_.grid()), {}, 0});
    }
    if (!sends_from_scratch()) send_contributions();
    for (Slot& slot : slots_) expect_next(slot);
    comm_.move_until(call, [&](bool& busy) { return step(mine, busy); });
  }

 private:
  struct Slot {  // a piece on its way to this rank, from all other nodes
    std::byte* memory = nullptr;
    std::optional<Piece> piece;
    std::vector<Transport::Ticket> last;  // of each counterpart
  };
  struct Client {
    int rank;
    Pieces<std::vector<Range>> pieces;
    std::array<Transport::Ticket, 2> sent;
    std::size_t next_slot;
  };

  // The number of elements that a node sends for one element of the sum.
  [[nodiscard]] std::size_t parts_from(int node) const {
    return plan_.by_node ? 1 : topology_.ranks_of(node).size();
  }
  [[nodiscard]] bool sends_from_scratch() const { return plan_.by_node || travelling_.encoded(); }
  // A sum of two does not depend on their order, so this node's sum need not be complete before it
  // is added to the other's.
  [[nodiscard]] bool sums_at_once() const {
    return plan_.by_node && topology_.nodes() == 2 && reduction_.in_dtype == wide_ &&
           size_of(reduction_.out_dtype) >= size_of(wide_);
  }

  void divide_scratch() {
    std::byte* memory = comm_.scratch(scratch_.bytes());
    for (Slot& slot : slots_) {
      slot.memory = memory;
      memory += scratch_.incoming;
    }
    decoded_ = memory;
    own_sum_ = decoded_ + scratch_.decoded;
    whole_sum_ = own_sum_ + scratch_.sum;
    outgoing_ = whole_sum_ + scratch_.sum;
  }

  // Sends contributions unencoded, from their place.
  void send_contributions() {
    for (Client& client : clients_) {
      while (const std::optional<Piece> piece = client.pieces.next()) {
        for (std::size_t place = 0; place < local_ranks(); ++place) {
          comm_.send_data(client.rank, contribution(place, piece->first),
                          bytes_for(piece->count, reduction_.in_dtype));
        }
      }
    }
  }

  [[nodiscard]] std::size_t local_ranks() const {
    return topology_.ranks_of(topology_.own_node()).size();
  }
  [[nodiscard]] std::byte* contribution(std::size_t place, std::int64_t first) const {
    return at_element(buffer_.region(static_cast<int>(place)), first, reduction_.in_dtype);
  }

  void collect_sources(const Piece& piece) {
    sources_.clear();
    for (std::size_t place = 0; place < local_ranks(); ++place) {
      sources_.push_back(contribution(place, piece.first));
    }
  }

  void sum_of_node(const Piece& piece, std::byte* out) {
    collect_sources(piece);
    sum_ranks(sources_, plan_.group_inside, out, piece.count, reduction_.in_dtype,
              partial_of(reduction_));
  }

  void expect_next(Slot& slot) {
    slot.piece = wanted_->next();
    slot.last.clear();
    if (!slot.piece) return;
    const std::size_t bytes = travelling_.bytes(slot.piece->count);
    std::byte* to = slot.memory;
    for (const int peer : topology_.counterparts()) {
      Transport::Ticket ticket = 0;
      for (std::size_t part = 0; part < parts_from(topology_.node_of(peer)); ++part) {
        ticket = transport_.receive(peer, to, bytes);
        to += nodes_piece_bytes;
      }
      slot.last.push_back(ticket);
    }
  }

  [[nodiscard]] bool has_come(const Slot& slot) const {
    const std::vector<int>& peers = topology_.counterparts();
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (!transport_.received(peers[i], slot.last[i])) return false;
    }
    return true;
  }

  // Sums the pieces that have arrived and sends those that are due; returns whether all is done.
  bool step(const std::vector<ReducedRange>& mine, bool& busy) {
    Slot& slot = slots_[next_slot_];
    if (slot.piece && has_come(slot)) {
      sum_piece(slot, mine);
      expect_next(slot);
      next_slot_ = 1 - next_slot_;
      busy = true;
    }
    if (sends_from_scratch()) {
      for (Client& client : clients_) busy |= serve(client);
    }
    return !busy && !slots_[0].piece && !slots_[1].piece && transport_.idle();
  }

  bool serve(Client& client) {
    Transport::Ticket& before = client.sent[client.next_slot];
    if (before != 0 && !transport_.sent(client.rank, before)) return false;
    const std::optional<Piece> piece = client.pieces.next();
    if (!piece) return false;
    const auto index = static_cast<std::size_t>(&client - clients_.data());
    std::byte* part = outgoing_ + (2 * index + client.next_slot) * scratch_.outgoing;
    if (plan_.by_node) {
      sum_of_node(*piece, part);
      before = comm_.send_data(client.rank, part, travelling_.bytes(piece->count));
    }
    for (std::size_t place = 0; place < local_ranks() && !plan_.by_node; ++place) {
      travelling_.encode(contribution(place, piece->first), piece->count, part);
      before = comm_.send_data(client.rank, part, travelling_.bytes(piece->count));
      part += nodes_piece_bytes;
    }
    client.next_slot = 1 - client.next_slot;
    return true;
  }

  // A part of a sum that has arrived, in its own type.
  [[nodiscard]] const std::byte* arrived(const Slot& slot, std::size_t part) const {
    std::byte* const memory = slot.memory + part * nodes_piece_bytes;
    if (!travelling_.encoded()) return memory;
    std::byte* const decoded = decoded_ + part * bytes_for(largest_, travelling_.dtype);
    travelling_.decode(memory, slot.piece->count, decoded);
    return decoded;
  }

  // The parts of a sum, from nodes or from ranks, in the order of the sum.
  void collect_parts(const Slot& slot) {
    parts_.resize(static_cast<std::size_t>(plan_.by_node ? topology_.nodes() : topology_.ranks()));
    std::size_t came = 0;
    for (int node = 0; node < topology_.nodes(); ++node) {
      const bool here = node == topology_.own_node();
      for (std::size_t part = 0; part < parts_from(node); ++part) {
        const auto index =
            static_cast<std::size_t>(plan_.by_node ? node : topology_.ranks_of(node)[part]);
        parts_[index] = !here           ? arrived(slot, came++)
                        : plan_.by_node ? own_sum_
                                        : contribution(part, slot.piece->first);
      }
    }
  }

  void sum_piece(const Slot& slot, const std::vector<ReducedRange>& mine) {
    const Piece& piece = *slot.piece;
    std::byte* out = at_element(mine[piece.range].out, piece.offset, reduction_.out_dtype);
    if (sums_at_once()) {
      collect_sources(piece);
      sources_.push_back(arrived(slot, 0));
      return sum_ranks(sources_, plan_.group_inside, out, piece.count, wide_, reduction_);
    }
    if (plan_.by_node) sum_of_node(piece, own_sum_);
    collect_parts(slot);
    const bool narrow = plan_.by_node && size_of(reduction_.out_dtype) < size_of(wide_);
    if (narrow) {
      sum_ranks(parts_, plan_.group_of_sums, whole_sum_, piece.count, travelling_.dtype,
                partial_of(reduction_));
      finish_sum(whole_sum_, out, piece.count, wide_, reduction_);
    } else {
      sum_ranks(parts_, plan_.group_of_sums, out, piece.count, travelling_.dtype, reduction_);
    }
  }

  NodesCommunicator& comm_;
  const Topology& topology_;
  Transport& transport_;
  const SharedBuffer& buffer_;
  const Reduction reduction_;
  const DType wide_;
  const SumOverNodes plan_;
  const Travelling travelling_;
  const std::int64_t largest_;  // elements of a piece
  const ReductionScratch scratch_;
  std::array<Slot, 2> slots_;
  std::size_t next_slot_ = 0;
  std::byte* decoded_ = nullptr;    // arrived data, by parts
  std::byte* own_sum_ = nullptr;    // this node's
  std::byte* whole_sum_ = nullptr;  // of all nodes, before it is rounded
  std::byte* outgoing_ = nullptr;   // two for each client
  std::optional<Pieces<std::vector<ReducedRange>>> wanted_;
  std::vector<Client> clients_;
  std::vector<const void*> sources_, parts_;
};

std::byte* NodesCommunicator::scratch(std::size_t bytes) {
  if (scratch_.size() * sizeof(CacheLine) < bytes) {
    held_scratch_ = {};
    scratch_ = {};
    scratch_.resize((bytes + sizeof(CacheLine) - 1) / sizeof(CacheLine));
    held_scratch_ = HeldBlock(local_->group().job()->held_memory(), bytes);
  }
  return reinterpret_cast<std::byte*>(scratch_.data());
}

void NodesCommunicator::do_reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges,
                                          const Reduction& reduction, Tag tag) {
  SharedBuffer& shared = own(buffer, Op::reduce_scatter);
  shared.publish(Op::reduce_scatter);
  const Call call = with_reduction(shared.call(Op::reduce_scatter, tag), reduction);
  collective(call, [&] {
    exchange_ranges(ranges, call);
    Reducing reducing(*this, shared, reduction);
    reducing.run(
        ranges, [this](int client) -> const std::vector<Range>& { return ranges_of(client); },
        call);
  });
  shared.release();
}

void NodesCommunicator::reserve_scratch(std::size_t bytes) {
  if (bytes == 0 || sums_ != nullptr) return;
  sums_ = std::dynamic_pointer_cast<SharedBuffer>(
      allocate("sums of all_reduce", 2 * reduced_bytes, Sharing::one_copy));
}

void NodesCommunicator::do_all_reduce(Buffer& buffer, std::int64_t count, void* out,
                                      const Reduction& reduction, Tag tag) {
  SharedBuffer& shared = own(buffer, Op::all_reduce);
  Call call = with_reduction(shared.call(Op::all_reduce, tag), reduction);
  call.bytes = static_cast<std::uint64_t>(count) * size_of(reduction.in_dtype);
  reserve_scratch(2 * reduced_bytes);
  shared.publish(Op::all_reduce);
  collective(call, [&] {
    exchange_headers(call, 0);
    meet(call);
    all_reduce_in_pieces(shared, count, out, reduction, call);
    move_until(call, [this](bool&) { return transport_->idle(); });
  });
  shared.release();
}

// Each rank sums its part of a piece into its node's memory; the parts are gathered there, and
// every rank copies the whole piece from there.
void NodesCommunicator::all_reduce_in_pieces(SharedBuffer& buffer, std::int64_t count, void* out,
                                             const Reduction& reduction, Call call) {
  // Sums that accumulate are scaled and added at the end, by the same kernel as in reduce_scatter.
  // Parts are whole blocks.
  Reduction part = reduction;
  if (reduction.accumulate) part = partial_of(reduction);
  part.group = reduction.group;
  const auto ranks = static_cast<std::int64_t>(size());
  const std::size_t width = size_of(part.out_dtype);
  const std::int64_t blocks = ranks * wire_block;
  const std::int64_t most = static_cast<std::int64_t>(reduced_bytes / width) / blocks * blocks;
  TESSERA_REQUIRE(most > 0, "all_reduce over {} ranks", ranks);
  std::vector<std::vector<Range>> parts(static_cast<std::size_t>(ranks));
  for (std::int64_t begin = 0; begin < count; begin += most) {
    const std::int64_t length = std::min(most, count - begin);
    const std::int64_t share = (length + blocks - 1) / blocks * wire_block;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const std::int64_t first = std::min(rank * share, length);
      parts[static_cast<std::size_t>(rank)] = {{begin + first, std::min(share, length - first)}};
    }
    // The halves are used alternately: a rank is at most one meeting ahead of the slowest reader.
    std::byte* sums = sums_->data() + (call.part & 1) * reduced_bytes;
    const Range& mine = parts[static_cast<std::size_t>(rank())].front();
    Reducing reducing(*this, buffer, part);
    reducing.run(
        {{mine.first, mine.count, at_element(sums, rank() * share, part.out_dtype)}},
        [&](int client) -> const std::vector<Range>& {
          return parts[static_cast<std::size_t>(client)];
        },
        call);
    gather(sums, {{0, static_cast<std::size_t>(share * ranks) * width}}, call);
    ++call.part;
    meet(call);
    std::byte* target = at_element(out, begin, reduction.out_dtype);
    if (reduction.accumulate) {
      finish_sum(sums, target, length, part.out_dtype, reduction);
    } else {
      current_queue(device()).copy(target, sums, static_cast<std::size_t>(length) * width);
    }
  }
}

}  // namespace tessera::comm
