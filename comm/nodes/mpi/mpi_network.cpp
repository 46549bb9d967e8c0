// MPI's life, its tags, and the thread that lets MPI make progress while no call does.
#include "comm/nodes/mpi/mpi_network.h"

#include <chrono>

#include "base/error.h"
#include "comm/control/bootstrap.h"
#include "comm/nodes/mpi/mpi_transport.h"
#include "comm/watch/thread_activity.h"

namespace tessera::comm {
namespace {

constexpr int hello_tag = 0;
constexpr std::chrono::milliseconds pause_between_looks{1};
// MPI may move a message only during calls, and a rank may continue to a wait that is not for MPI:
// for a rank of its node that waits for the message that MPI has not moved.
constexpr std::chrono::milliseconds pause_between_pushes{2};

}  // namespace

MpiNetwork::MpiNetwork(const World& world)
    : mpi_(mpi_library("backend shm+mpi", "use shm+tcp")), world_(world) {
  if (control::meets_by_mpi(world)) initialize();
}

MpiNetwork::~MpiNetwork() {
  stop_pushing();
}

void MpiNetwork::initialize() {
  TESSERA_CHECK(!mpi_.finalized(), ErrorCode::configuration,
                "MPI has ended in this process, and starts once only: a program that connects "
                "several times with backend shm+mpi initialises and finalises MPI itself");
  if (mpi_.initialized()) return;
  mpi_.init();
  is_ours_ = true;
}

void MpiNetwork::start(const std::vector<std::string>& contacts) {
  for (std::size_t rank = 0; rank < contacts.size(); ++rank) {
    TESSERA_CHECK(contacts[rank] == contacts.front(), ErrorCode::configuration,
                  "rank 0 has {} and rank {} {}: all hosts need the same MPI", contacts.front(),
                  rank, contacts[rank]);
  }
  initialize();
  check_world();
  const Mpi::Threads threads = mpi_.threads();
  TESSERA_CHECK(
      threads >= Mpi::Threads::serialized, ErrorCode::configuration,
      "rank {}: {} was initialised for calls from one thread only, and communicators "
      "call it from several: ask MPI_Init_thread for MPI_THREAD_MULTIPLE (or _SERIALIZED), "
      "or leave MPI_Init to Tessera",
      world_.rank, mpi_.description());
  largest_tag_ = mpi_.largest_tag();
}

void MpiNetwork::check_world() {
  const int rank = mpi_.rank();
  const int size = mpi_.size();
  TESSERA_CHECK(
      rank == world_.rank && size == world_.size, ErrorCode::configuration,
      "rank {} of {} is rank {} of {} for {}: with backend shm+mpi the ranks are those of "
      "mpirun or of srun with --mpi ({}), or use shm+tcp",
      world_.rank, world_.size, rank, size, mpi_.description(),
      size == 1 ? "which did not start this program, belong to another MPI, or lack "
                  "--mpi=pmix or pmi2"
                : "do not set RANK and WORLD_SIZE otherwise");
}

void MpiNetwork::meet(Look look) {
  if (is_ours_) mpi_.return_errors(mpi_.world());
  copy_ = mpi_.copy_world(look);
  mpi_.return_errors(copy_);
  pusher_ = start_watcher("mpi", [this] { push_on(); });
}

int MpiNetwork::next_tag(int rank) {
  const std::lock_guard lock(mutex_);
  int& last = tags_.emplace(rank, hello_tag).first->second;
  TESSERA_CHECK(last < largest_tag_, ErrorCode::runtime,
                "rank {} has opened {} channels to rank {}, and {} has no more tags; reuse "
                "communicators, or use shm+tcp",
                world_.rank, last, rank, mpi_.description());
  return ++last;
}

void MpiNetwork::say(int rank, const Hello& hello, const Look& look) {
  Mpi::Request request = mpi_.send(&hello, sizeof(hello), rank, hello_tag, copy_);
  while (!mpi_.test(request, nullptr)) {
    try {
      look();
    } catch (...) {
      mpi_.give_up();  // the message's memory is freed
      throw;
    }
    std::this_thread::sleep_for(pause_between_looks);
  }
}

// A hello for another channel is kept for the thread that opens that channel.
int MpiNetwork::hear(std::uint64_t channel, const Peer& peer, std::chrono::milliseconds timeout,
                     const Look& look) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      while (mpi_.is_there(peer.rank, hello_tag, copy_)) {
        Hello hello;
        mpi_.take(&hello, sizeof(hello), peer.rank, hello_tag, copy_);
        TESSERA_CHECK(hello.magic == Hello::magic_number, ErrorCode::rank_failed,
                      "{} sent a message by MPI that is not of this job", peer.name);
        announced_[{peer.rank, hello.channel}] = hello.tag;
      }
      const auto found = announced_.find({peer.rank, channel});
      if (found != announced_.end()) {
        const int tag = found->second;
        announced_.erase(found);
        return tag;
      }
    }
    TESSERA_CHECK(std::chrono::steady_clock::now() < deadline, ErrorCode::rank_failed,
                  "{} did not open a channel to rank {} by MPI within {} s", peer.name, world_.rank,
                  std::chrono::duration<double>(timeout).count());
    look();
    std::this_thread::sleep_for(pause_between_looks);
  }
}

std::unique_ptr<Transport> MpiNetwork::open(std::uint64_t channel, const std::vector<Peer>& peers,
                                            std::chrono::milliseconds timeout, const Look& look) {
  std::map<int, MpiTransport::Peer> links;
  for (const Peer& peer : peers) {
    if (peer.rank < world_.rank) continue;
    const int tag = next_tag(peer.rank);
    say(peer.rank, {.channel = channel, .tag = tag}, look);
    links[peer.number] = {peer.rank, tag, peer.name};
  }
  for (const Peer& peer : peers) {
    if (peer.rank > world_.rank) continue;
    links[peer.number] = {peer.rank, hear(channel, peer, timeout, look), peer.name};
  }
  return std::make_unique<MpiTransport>(mpi_, copy_, std::move(links));
}

void MpiNetwork::push_on() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, pause_between_pushes, [this] { return ending_; })) {
    lock.unlock();
    try {
      (void)mpi_.is_there(world_.rank, hello_tag, copy_);  // false, but MPI makes progress
    } catch (const Error&) {
      return;  // a wait for messages reports it
    }
    lock.lock();
  }
}

void MpiNetwork::stop_pushing() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (pusher_.joinable()) pusher_.join();
}

void MpiNetwork::give_up() noexcept {
  mpi_.give_up();
}

// MPI_Finalize waits for all ranks and cannot be interrupted, so the ranks meet first.
void MpiNetwork::leave(const Look& look) {
  if (!pusher_.joinable()) return;
  mpi_.meet(look);
  stop_pushing();
  if (is_ours_) mpi_.finalize();
}

}  // namespace tessera::comm
