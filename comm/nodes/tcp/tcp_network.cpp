// A connection for each peer.
#include "comm/nodes/tcp/tcp_network.h"

#include "comm/nodes/tcp/tcp_transport.h"

namespace tessera::comm {

std::unique_ptr<Transport> TcpNetwork::open(std::uint64_t channel, const std::vector<Peer>& peers,
                                            std::chrono::milliseconds timeout, const Look& look) {
  std::vector<Meeting::Peer> called;
  for (const Peer& peer : peers) {
    called.push_back({peer.rank, decode_contact(peer.contact), peer.name});
  }
  std::vector<FileDescriptor> connections = meeting_.connect(channel, called, timeout, look);
  std::map<int, TcpTransport::Peer> links;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    links[peers[i].number] = {std::move(connections[i]), peers[i].name};
  }
  return std::make_unique<TcpTransport>(std::move(links));
}

}  // namespace tessera::comm
