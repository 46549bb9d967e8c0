// The communicator interface: the operations that the sharding code needs of a group of ranks.
//
// Collectives work on `Buffer`s, memory that the communicator allocates so that it can be shared
// between the ranks (or registered with a network): on one node an all-gather copies nothing, since
// all ranks map one buffer. Every call blocks the calling thread; callers get asynchrony when they
// call from the worker of a side stream. Calls on one communicator must come from one thread at a
// time and in the same order on every rank; use duplicate() for a second, independent channel. A
// communicator is used by the threads of one rank only.
//
// On a GPU, buffers and outputs are memory of device(), and "written", "read" and "complete" refer
// to the order of the calling thread's current queue of that device (engine/device/queue.h): a call
// returns when its work is in that queue, behind all work that it depends on, including that of
// other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/block_float.h"
#include "base/dtype.h"
#include "comm/control_group.h"
#include "engine/device/device.h"

namespace tessera::comm {

enum class Sharing : std::uint8_t {
  one_copy,  // one region that every rank maps: all-gather destinations
  per_rank,  // a region for each rank, readable by all: reduce-scatter sources
};

// Collective memory, zero-filled, aligned to 4096 bytes (256 on a GPU). The caller owns it; it is
// freed with the last reference.
//
// Protocol: a writer calls acquire(), which waits until every rank has released the buffer's last
// contents; it writes (its shard of a one_copy buffer, its own region of a per_rank one); then it
// calls the collective that publishes the contents. After all_gather each rank reads in place and
// calls release() once when it has finished, from any thread (on a GPU: when the reads are in that
// thread's current queue). reduce_scatter, all_reduce and all_to_all release by themselves. A
// violation is a logic_error.
class Buffer {
 public:
  virtual ~Buffer() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;  // as given to allocate()
  [[nodiscard]] virtual std::byte* data()
      const = 0;  // the shared region, or this rank's own region
  [[nodiscard]] virtual std::size_t bytes() const = 0;  // of one region
  [[nodiscard]] virtual Sharing sharing() const = 0;
  virtual void release() = 0;
};

// A run of bytes of a one_copy buffer that consists of size() equal shards, in rank order.
struct GatheredRange {
  std::size_t first = 0;
  std::size_t bytes = 0;  // of all shards
  // The format in which shards travel between ranks. Their elements are of `dtype`, and
  // kernels::Wire has already rounded them to the format, block by block from each shard's
  // beginning, so nothing is lost.
  WireFormat wire = WireFormat::same;
  DType dtype = DType::float32;
};

// The bytes of all of `ranges`.
std::size_t total_bytes(const std::vector<GatheredRange>& ranges);

struct Reduction {
  DType in_dtype = DType::float32;
  DType out_dtype =
      DType::float32;  // fp32, fp64 or in_dtype; partial sums are fp32 (fp64 for fp64)
  int group = 0;       // the tree of kernels::ReduceRanks; 0: all ranks in one tree
  float scale = 1.0f;
  bool accumulate = false;  // add to what out holds
  // The format in which the ranks' contributions travel: kernels::Wire has already rounded the
  // region to it, block by block from its beginning. The sums do not depend on it.
  WireFormat wire = WireFormat::same;
};

// A contiguous run of elements of a per_rank buffer and the destination of its sum (memory of the
// communicator's device).
struct ReducedRange {
  std::int64_t first = 0;  // element index in the buffer, in units of in_dtype
  std::int64_t count = 0;
  void* out = nullptr;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  // Small messages, aborts and the state of threads; the functions below forward to it.
  [[nodiscard]] virtual ControlGroup& control() const = 0;
  [[nodiscard]] int rank() const { return control().rank(); }
  [[nodiscard]] int size() const { return control().size(); }
  std::vector<std::string> exchange(std::string_view message, Tag tag = {}) {
    return control().exchange(message, tag);
  }
  std::string broadcast(std::string_view message, int root, Tag tag = {}) {
    return control().broadcast(message, root, tag);
  }
  void barrier(Tag tag = {}) { control().barrier(tag); }
  void abort(std::string_view reason) noexcept { control().abort(reason); }
  void note(Activity activity) noexcept { control().note(activity); }

  [[nodiscard]] virtual std::string_view backend() const = 0;
  // The device of the buffers and of the sums.
  [[nodiscard]] virtual Device device() const = 0;
  // True when the ranks see one memory, so that a one_copy buffer exists once for all of them.
  [[nodiscard]] virtual bool one_memory() const { return true; }
  // The number of ranks of one node that share a one_copy buffer, when the ranks are on several
  // nodes; else 0.
  [[nodiscard]] virtual int ranks_per_host() const { return 0; }
  // True when sums have the order and the precision that reduce_scatter documents below.
  [[nodiscard]] virtual bool fixed_order() const { return true; }

  // Collective: every rank passes the same name, bytes and sharing.
  virtual std::shared_ptr<Buffer> allocate(std::string_view name, std::size_t bytes,
                                           Sharing sharing) = 0;

  // Waits until this rank may write `buffer` again (all ranks have released its last contents). The
  // tag only explains errors; it is not compared.
  virtual void acquire(Buffer& buffer, Tag tag = {}) = 0;

  // Publishes this rank's shard of each of `ranges` of a one_copy buffer, bytes [first +
  // rank*bytes/size, first + (rank+1)*bytes/size); returns when the shards of all ranks can be
  // read. The ranges are the same on every rank and divide into size() shards. Bytes outside of
  // them do not change.
  void all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges, Tag tag);
  // The same for the first `bytes` of the buffer: a pooled buffer may be larger than its contents.
  void all_gather(Buffer& buffer, std::size_t bytes, Tag tag) {
    all_gather(buffer, std::vector<GatheredRange>{{0, bytes}}, tag);
  }

  // Sums the ranks' regions in the fixed order over this rank's `ranges` (other ranks pass others;
  // an empty list is allowed). Returns when this rank's sums are complete; the region may be
  // written again after the next acquire().
  void reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges,
                      const Reduction& reduction, Tag tag);

  // The same sum of elements [0, count) for every rank: out[i] on each rank has the same bits that
  // reduce_scatter gives.
  void all_reduce(Buffer& buffer, std::int64_t count, void* out, const Reduction& reduction,
                  Tag tag);

  // Each rank sends every rank a piece of its region of a per_rank buffer: rank i gets the `bytes`
  // bytes from i * bytes on. `out`, memory of device() outside of the buffer, receives size()
  // pieces, in the order of the ranks that sent them. A rank keeps its own piece: it is copied,
  // too. Returns when the pieces can be read. The region may be written again after the next call
  // of acquire().
  void all_to_all(Buffer& buffer, std::size_t bytes, void* out, Tag tag);

  // Collective. Allocates now the scratch memory that reductions would allocate when they first
  // need it. comm/scratch.h computes `bytes` for the largest reduction of this rank.
  virtual void reserve_scratch(std::size_t /*bytes*/) {}

  // Copies memory of device() from one rank to another: the peer calls receive() with the same
  // bytes and tag, and messages from one rank to another arrive in order. send() returns when the
  // memory may be written again; it may wait for the peer's receive(), so ranks that all send first
  // may deadlock. receive() returns when the bytes have arrived. On a GPU, both are defined in
  // queue order as above.
  void send(const void* memory, std::size_t bytes, int to, Tag tag = {});
  void receive(void* memory, std::size_t bytes, int from, Tag tag = {});
  // Collective: copies the root's memory to every rank.
  void broadcast(void* memory, std::size_t bytes, int root, Tag tag = {});

  // Collective: a communicator of the ranks that pass the same colour, ordered by (key, rank).
  virtual std::shared_ptr<Communicator> split(int color, int key, std::string_view name) = 0;
  // The same when every rank can compute the members by itself: split_blocks() makes blocks of
  // `ranks` consecutive ranks, split_across_blocks() joins the ranks with the same place in their
  // blocks. `ranks` divides size().
  std::shared_ptr<Communicator> split_blocks(int ranks, std::string_view name);
  std::shared_ptr<Communicator> split_across_blocks(int ranks, std::string_view name);
  // Collective: the same ranks, an independent channel.
  virtual std::shared_ptr<Communicator> duplicate(std::string_view name) = 0;

  // Bytes of collective memory that this rank holds now, as requested: buffers and the scratch of
  // reductions, of all communicators that were split or duplicated from one connection. A buffer
  // that ranks share one copy of counts with this rank's part.
  [[nodiscard]] virtual std::size_t held_bytes() const = 0;

  // Bytes of buffers that this rank has sent to other nodes, by all communicators that were split
  // or duplicated from one connection; zero when another library sends them.
  [[nodiscard]] virtual std::uint64_t bytes_between_hosts() const { return 0; }

 protected:
  // The part of this rank after a split: `size` ranks, `stride` apart, of which it is `rank`.
  struct Part {
    int rank = 0;
    int size = 1;
    int stride = 1;
  };

  // The functions of the same name have checked the arguments, except that the buffer comes from
  // this communicator.
  virtual void do_all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges, Tag tag) = 0;
  virtual void do_reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges,
                                 const Reduction& reduction, Tag tag) = 0;
  virtual void do_all_reduce(Buffer& buffer, std::int64_t count, void* out,
                             const Reduction& reduction, Tag tag) = 0;
  virtual void do_all_to_all(Buffer& buffer, std::size_t bytes, void* out, Tag tag) = 0;
  virtual void do_send(const void* memory, std::size_t bytes, int to, Tag tag) = 0;
  virtual void do_receive(void* memory, std::size_t bytes, int from, Tag tag) = 0;
  virtual void do_broadcast(void* memory, std::size_t bytes, int root, Tag tag) = 0;
  // split_blocks() and split_across_blocks(); the ranks of a part pass the same colour.
  virtual std::shared_ptr<Communicator> do_split_evenly(int color, Part /*part*/,
                                                        std::string_view name) {
    return split(color, rank(), name);
  }
};

// Tells the watch over ranks what a thread does during the scope.
template <Activity begins, Activity ends>
class ActivityScope {
 public:
  explicit ActivityScope(Communicator& communicator) : communicator_(communicator) {
    communicator_.note(begins);
  }
  ~ActivityScope() { communicator_.note(ends); }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  Communicator& communicator_;
};

// A worker's work for its rank, on the worker's thread.
using WorkerScope = ActivityScope<Activity::worker_begins, Activity::worker_ends>;
// The rank's own thread waits for its workers.
using RankWaits = ActivityScope<Activity::rank_waits, Activity::rank_goes_on>;
// The rank waits for something outside of the job, and others may wait for it longer than
// ConnectOptions::standstill_timeout: a download that pauses, a process that it started.
using OutsideWait = ActivityScope<Activity::outside_wait_begins, Activity::outside_wait_ends>;

}  // namespace tessera::comm
