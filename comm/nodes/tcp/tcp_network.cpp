// A connection for each peer, and what the ranks have to agree on.
#include "comm/nodes/tcp/tcp_network.h"

#include "base/error.h"
#include "comm/nodes/tcp/tcp_transport.h"

namespace tessera::comm {

void TcpNetwork::start(const std::vector<std::string>& contacts) {
  const auto encrypts = [&](std::size_t rank) {
    return decode_contact(contacts[rank]).protection == Protection::encrypted;
  };
  for (std::size_t rank = 1; rank < contacts.size(); ++rank) {
    const bool first = encrypts(0);
    TESSERA_CHECK(encrypts(rank) == first, ErrorCode::configuration,
                  "rank {} has {}=1 and rank {} does not: set it to the same value on all hosts",
                  first ? 0 : rank, encrypt_variable, first ? rank : 0);
  }
}

std::unique_ptr<Transport> TcpNetwork::open(std::uint64_t channel, const std::vector<Peer>& peers,
                                            std::chrono::milliseconds timeout, const Look& look) {
  std::vector<Meeting::Peer> called;
  for (const Peer& peer : peers) {
    called.push_back({peer.rank, decode_contact(peer.contact), peer.name});
  }
  std::vector<Meeting::Connection> connections = meeting_.connect(channel, called, timeout, look);
  std::map<int, TcpTransport::Peer> links;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    Meeting::Connection& made = connections[i];
    links[peers[i].number] = {std::move(made.socket), peers[i].name, made.keys};
  }
  return std::make_unique<TcpTransport>(std::move(links));
}

}  // namespace tessera::comm
