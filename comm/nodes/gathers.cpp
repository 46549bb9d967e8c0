// Gathers over several nodes: each shard goes to one counterpart on each node, which receives it
// into that node's only copy. Encoded data goes in pieces through scratch memory; the next piece is
// encoded and the last one decoded while others are on their way.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "comm/nodes/communicator.h"
#include "comm/nodes/pieces.h"
#include "comm/nodes/travelling.h"

namespace tessera::comm {

// Shards that travel encoded, in blocks from each shard's beginning.
class NodesCommunicator::EncodedShares {
 public:
  EncodedShares(NodesCommunicator& communicator, std::byte* memory,
                const std::vector<GatheredRange>& ranges)
      : comm_(communicator), transport_(*communicator.transport_) {
    for (const GatheredRange& range : ranges) {
      if (range.wire == WireFormat::same) continue;
      const std::size_t bytes = range.bytes / static_cast<std::size_t>(comm_.size());
      const Travelling travelling{range.dtype, range.wire};
      shares_.push_back({travelling, memory + range.first, bytes});
      elements_.push_back({0, static_cast<std::int64_t>(bytes / size_of(range.dtype))});
      largest_ = std::min(largest_, travelling.piece());
    }
    std::byte* scratch = comm_.scratch(nodes_gather_scratch(comm_.topology_, ranges));
    const auto take_piece = [&scratch] {
      std::byte* const piece = scratch;
      scratch += nodes_piece_bytes;
      return piece;
    };
    outgoing_.emplace(elements_, largest_);
    for (Outgoing& slot : sending_) {
      slot.memory = take_piece();
      slot.sent.resize(comm_.topology_.counterparts().size());
    }
    for (const int rank : comm_.topology_.clients()) {
      clients_.push_back({rank, {elements_, largest_}, {}, 0});
      for (Incoming& slot : clients_.back().slots) {
        slot.memory = take_piece();
        expect_next(clients_.back(), slot);
      }
    }
  }

  // Encodes and sends a piece if a slot is free, and decodes pieces that have arrived; returns
  // whether all is done.
  bool step(bool& busy) {
    busy |= send_next();
    bool expects = false;
    for (Client& client : clients_) {
      busy |= take_next(client);
      expects |= client.slots[client.next].piece.has_value();
    }
    return !busy && !expects;
  }

 private:
  struct Share {
    Travelling travelling;
    std::byte* first;  // rank's
    std::size_t bytes;
  };
  struct Outgoing {
    std::byte* memory = nullptr;
    std::vector<Transport::Ticket> sent{};  // to each counterpart
  };
  struct Incoming {
    std::byte* memory = nullptr;
    std::optional<Piece> piece{};
    Transport::Ticket arrives = 0;
  };
  struct Client {
    int rank;
    Pieces<std::vector<Range>> pieces;
    std::array<Incoming, 2> slots;
    std::size_t next;
  };

  [[nodiscard]] const Travelling& travelling(const Piece& piece) const {
    return shares_[piece.range].travelling;
  }
  [[nodiscard]] std::byte* place_of(const Piece& piece, int rank) const {
    const Share& share = shares_[piece.range];
    return share.first + static_cast<std::size_t>(rank) * share.bytes +
           static_cast<std::size_t>(piece.offset) * size_of(share.travelling.dtype);
  }

  bool send_next() {
    Outgoing& slot = sending_[next_];
    const std::vector<int>& peers = comm_.topology_.counterparts();
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (!transport_.sent(peers[i], slot.sent[i])) return false;
    }
    const std::optional<Piece> piece = outgoing_->next();
    if (!piece) return false;
    const Travelling& as = travelling(*piece);
    as.encode(place_of(*piece, comm_.rank()), piece->count, slot.memory);
    for (std::size_t i = 0; i < peers.size(); ++i) {
      slot.sent[i] = comm_.send_data(peers[i], slot.memory, as.bytes(piece->count));
    }
    next_ = 1 - next_;
    return true;
  }

  void expect_next(Client& client, Incoming& slot) {
    slot.piece = client.pieces.next();
    if (!slot.piece) return;
    const std::size_t bytes = travelling(*slot.piece).bytes(slot.piece->count);
    slot.arrives = transport_.receive(client.rank, slot.memory, bytes);
  }

  bool take_next(Client& client) {
    Incoming& slot = client.slots[client.next];
    if (!slot.piece || !transport_.received(client.rank, slot.arrives)) return false;
    const Piece piece = *slot.piece;
    travelling(piece).decode(slot.memory, piece.count, place_of(piece, client.rank));
    expect_next(client, slot);
    client.next = 1 - client.next;
    return true;
  }

  NodesCommunicator& comm_;
  Transport& transport_;
  std::vector<Share> shares_;
  std::vector<Range> elements_;                                      // of each shard
  std::int64_t largest_ = std::numeric_limits<std::int64_t>::max();  // of a piece
  std::optional<Pieces<std::vector<Range>>> outgoing_;
  std::array<Outgoing, 2> sending_;
  std::size_t next_ = 0;
  std::vector<Client> clients_;
};

// Data that is not encoded is sent from its place and received into its place.
void NodesCommunicator::gather(std::byte* memory, const std::vector<GatheredRange>& ranges,
                               const Call& call) {
  const auto ranks = static_cast<std::size_t>(size());
  bool encoded = false;
  for (const GatheredRange& range : ranges) {
    const std::size_t bytes = range.bytes / ranks;
    if (bytes == 0) continue;
    if (range.wire != WireFormat::same) {
      encoded = true;
      continue;
    }
    const auto share_of = [&](int of) {
      return memory + range.first + static_cast<std::size_t>(of) * bytes;
    };
    for (const int peer : topology_.counterparts()) send_data(peer, share_of(rank()), bytes);
    for (const int client : topology_.clients()) {
      transport_->receive(client, share_of(client), bytes);
    }
  }
  if (encoded) {
    EncodedShares shares(*this, memory, ranges);
    move_until(call, [&](bool& busy) { return shares.step(busy) && transport_->idle(); });
  } else {
    move_until(call, [this](bool&) { return transport_->idle(); });
  }
}

void NodesCommunicator::do_all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges,
                                      Tag tag) {
  SharedBuffer& shared = own(buffer, Op::all_gather);
  Call call = shared.call(Op::all_gather, tag);
  call.bytes = total_bytes(ranges);
  shared.publish(Op::all_gather);
  collective(call, [&] {
    exchange_headers(call, 0);
    gather(shared.data(), ranges, call);
    meet(call);
  });
}

}  // namespace tessera::comm
