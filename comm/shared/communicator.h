// The communicator of ranks that see one memory: threads of a process (`local`, on the CPU or all
// on one GPU) or processes of a node (`shm`).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/shared/buffer.h"
#include "comm/shared/group.h"

namespace tessera::comm {

class SharedCommunicator final : public Communicator {
 public:
  explicit SharedCommunicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  ~SharedCommunicator() override { group_->close(); }
  SharedCommunicator(const SharedCommunicator&) = delete;
  SharedCommunicator& operator=(const SharedCommunicator&) = delete;

  [[nodiscard]] ControlGroup& control() const override { return *group_; }
  [[nodiscard]] std::string_view backend() const override { return group_->job()->backend(); }

  [[nodiscard]] Device device() const override { return group_->job()->device(); }

  std::shared_ptr<Buffer> allocate(std::string_view name, std::size_t bytes,
                                   Sharing sharing) override;
  void acquire(Buffer& buffer, Tag tag) override;
  void reserve_scratch(std::size_t bytes) override;
  std::shared_ptr<Communicator> split(int color, int key, std::string_view name) override;
  std::shared_ptr<Communicator> duplicate(std::string_view name) override;
  [[nodiscard]] std::size_t held_bytes() const override {
    return group_->job()->held_memory()->bytes();
  }

  [[nodiscard]] Group& group() const { return *group_; }

 private:
  void do_all_gather(Buffer& buffer, const std::vector<GatheredRange>& ranges, Tag tag) override;
  void do_reduce_scatter(Buffer& buffer, const std::vector<ReducedRange>& ranges,
                         const Reduction& reduction, Tag tag) override;
  void do_all_reduce(Buffer& buffer, std::int64_t count, void* out, const Reduction& reduction,
                     Tag tag) override;
  void do_all_to_all(Buffer& buffer, std::size_t bytes, void* out, Tag tag) override;
  void do_send(const void* memory, std::size_t bytes, int to, Tag tag) override;
  void do_receive(void* memory, std::size_t bytes, int from, Tag tag) override;
  void do_broadcast(void* memory, std::size_t bytes, int root, Tag tag) override;

  SharedBuffer& own(Buffer& buffer, Op op) const;
  void reduce(const SharedBuffer& buffer, std::int64_t first, std::int64_t count, void* out,
              const Reduction& reduction);
  void all_reduce_in_chunks(SharedBuffer& buffer, std::int64_t count, void* out,
                            const Reduction& reduction, Call call);
  std::shared_ptr<Communicator> make_group(const std::vector<int>& members, std::string_view name,
                                           const Call& call);

  std::shared_ptr<Group> group_;
  std::uint64_t buffers_ = 0;
  std::shared_ptr<SharedBuffer>
      sums_;  // of all_reduce, from reserve_scratch() or its first call on
  std::vector<const void*> sources_;
};

}  // namespace tessera::comm
