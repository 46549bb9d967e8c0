// The end of connections between hosts: at once while a message is being sent, else after the sent
// data have arrived.
#include "comm/nodes/tcp/tcp_transport.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "comm/nodes/socket_pairs.h"

namespace tessera::comm {
namespace {

using tessera::testing::connected;

TcpTransport transport_over(FileDescriptor connection) {
  std::map<int, TcpTransport::Peer> peers;
  peers[1] = {std::move(connection), "rank 1"};
  return TcpTransport(std::move(peers));
}

TEST(TcpTransport, SentDataArriveAfterItsEnd) {
  auto [mine, theirs] = connected();
  std::vector<std::byte> message(1000, std::byte{7}), got(1000);
  {
    TcpTransport transport = transport_over(std::move(mine));
    transport.send(1, message.data(), message.size());
    while (!transport.idle()) (void)transport.move(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(recv(theirs.get(), got.data(), got.size(), MSG_WAITALL), 1000);
  EXPECT_EQ(got, message);
  EXPECT_EQ(recv(theirs.get(), got.data(), 1, 0), 0);
}

// The kernel keeps no data of the connection: it would otherwise retry for half a minute with a
// host that is gone.
TEST(TcpTransport, AnUnfinishedMessageEndsWithIt) {
  auto [mine, theirs] = connected();
  std::vector<std::byte> message(std::size_t{64} << 20);
  {
    TcpTransport transport = transport_over(std::move(mine));
    transport.send(1, message.data(), message.size());
    (void)transport.move(std::chrono::milliseconds(0));
    ASSERT_FALSE(transport.idle());
  }
  ssize_t bytes = 0;
  do {
    bytes = recv(theirs.get(), message.data(), message.size(), 0);
  } while (bytes > 0);
  EXPECT_EQ(bytes, -1);
  EXPECT_EQ(errno, ECONNRESET);
}

}  // namespace
}  // namespace tessera::comm
