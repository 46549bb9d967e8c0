// Steps whose parameters, gradients and state are partly on a GPU and partly on its host.
#include <algorithm>
#include <vector>

#include "engine/optim/optimizer.h"
#include "engine/storage/host_link.h"

namespace tessera::optim {
namespace {

// An array on the other side, and the window through which it passes.
struct Passing {
  HostLink::Window* window = nullptr;
  std::byte* memory = nullptr;  // of element 0 of the segment
  std::size_t element = 4;      // bytes
  bool changes = false;

  [[nodiscard]] std::byte* at(ElementRange range) const {
    return memory + range.first * static_cast<std::int64_t>(element);
  }
  [[nodiscard]] std::size_t bytes(ElementRange range) const {
    return static_cast<std::size_t>(range.count) * element;
  }
};

class Passage {
 public:
  Passage(HostLink& link, std::vector<Passing> arrays, ElementRange all)
      : link_(link),
        compute_(current_queue(link.device())),
        on_host_(link.updates_on() != link.device()),
        arrays_(std::move(arrays)) {
    std::int64_t step = all.count;
    for (const Passing& array : arrays_)
      step = std::min(step, static_cast<std::int64_t>(array.window->piece_bytes() / array.element));
    for (std::int64_t at = all.first; at < all.end(); at += step)
      pieces_.push_back({at, std::min(step, all.end() - at)});
    const PointHandle begin = compute_.record();
    link_.up().wait(begin);
    link_.down().wait(begin);
  }

  // Calls work(range, addresses of each array's `range`).
  template <class Work>
  void run(const Work& work) {
    std::vector<std::byte*> where(arrays_.size());
    constexpr std::size_t ahead = HostLink::pieces - 1;
    for (std::size_t i = 0; i < std::min(ahead, pieces_.size()); ++i) bring(i);
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (i + ahead < pieces_.size()) bring(i + ahead);
      await(i);
      for (std::size_t a = 0; a < arrays_.size(); ++a) where[a] = arrays_[a].window->piece(i);
      work(pieces_[i], where);
      take_back(i);
    }
    // Later work of the compute queue comes after the last piece.
    end_ = (on_host_ ? link_.up() : link_.down()).record();
    compute_.wait(end_);
  }
  [[nodiscard]] const PointHandle& end() const { return end_; }

 private:
  void bring(std::size_t piece) {
    const ElementRange range = pieces_[piece];
    DeviceQueue& queue = on_host_ ? link_.down() : link_.up();
    for (const Passing& array : arrays_) {
      queue.wait(array.window->writable(piece));
      if (on_host_) {
        queue.enqueue_copy_to_pinned(array.window->piece(piece), array.at(range),
                                     array.bytes(range));
      } else {
        queue.enqueue_copy_from_pinned(array.window->piece(piece), array.at(range),
                                       array.bytes(range));
      }
    }
    brought_[piece % HostLink::pieces] = queue.record();
  }
  void await(std::size_t piece) {
    const PointHandle& point = brought_[piece % HostLink::pieces];
    if (!on_host_) {
      compute_.wait(point);
    } else if (point) {
      point->synchronize();
    }
  }
  void take_back(std::size_t piece) {
    const ElementRange range = pieces_[piece];
    DeviceQueue& queue = on_host_ ? link_.up() : link_.down();
    const PointHandle updated = on_host_ ? nullptr : compute_.record();
    queue.wait(updated);
    for (const Passing& array : arrays_) {
      array.window->writable(piece) = updated;
      if (!array.changes) continue;
      if (on_host_) {
        queue.enqueue_copy_from_pinned(array.at(range), array.window->piece(piece),
                                       array.bytes(range));
      } else {
        queue.enqueue_copy_to_pinned(array.at(range), array.window->piece(piece),
                                     array.bytes(range));
      }
      array.window->writable(piece) = queue.record();
    }
  }

  HostLink& link_;
  DeviceQueue& compute_;
  const bool on_host_;
  std::vector<Passing> arrays_;
  std::vector<ElementRange> pieces_;
  std::array<PointHandle, HostLink::pieces> brought_;
  PointHandle end_;
};

}  // namespace

bool Optimizer::passes_host_link(std::size_t segment) const {
  const auto& link = segments_[segment].storage->shard().host_link;
  return link && (link->parameters() != nullptr || link->gradients() != nullptr);
}

void Optimizer::step_over_host_link(std::size_t segment, const std::vector<GradientRun>& runs) {
  const Segment& whole = segments_[segment];
  const GradientRun& run = runs.front();
  HostLink& link = *whole.storage->shard().host_link;
  const std::size_t element = size_of(whole.dtype), gradient_element = size_of(run.dtype);
  std::byte* const parameter = whole.data();
  std::byte* const gradient = run.storage->data() + (run.at - run.range.first) *
                                                        static_cast<std::int64_t>(gradient_element);
  std::vector<std::byte*> states;
  for (std::size_t i = 0; i < state_names().size(); ++i)
    states.push_back(segment_state(segment, i).raw_data());
  std::vector<Passing> arrays;
  if (link.parameters() != nullptr) arrays.push_back({link.parameters(), parameter, element, true});
  if (link.gradients() != nullptr)
    arrays.push_back({link.gradients(), gradient, gradient_element, false});
  Passage passage(link, std::move(arrays),
                  {run.range.first, runs.back().range.end() - run.range.first});
  passage.run([&](ElementRange range, const std::vector<std::byte*>& where) {
    const auto offset = [&](std::size_t bytes) {
      return range.first * static_cast<std::int64_t>(bytes);
    };
    auto next = where.begin();
    Memory memory;
    memory.device = link.updates_on();
    memory.parameter = link.parameters() != nullptr ? *next++ : parameter + offset(element);
    memory.gradient = link.gradients() != nullptr ? *next : gradient + offset(gradient_element);
    for (std::byte* const state : states) memory.states.push_back(state + offset(element));
    update_range(segment, range, memory);
  });
  if (link.updates_on() != link.device() || !passage.end()) return;
  // The GPU still works on data on the host: code that reads parameters or changes gradients there
  // must wait.
  const auto wait = [point = passage.end()] { point->synchronize(); };
  if (link.parameters() != nullptr) whole.storage->set_arrival(wait);
  if (link.gradients() != nullptr) run.storage->set_arrival(wait);
}

}  // namespace tessera::optim
