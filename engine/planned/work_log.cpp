// The lanes of a planned step.
#include "engine/planned/work_log.h"

#include "engine/device/pass.h"

namespace tessera {
namespace {

thread_local WorkLog* thread_work_log = nullptr;

}  // namespace

std::uint32_t WorkLog::add_lane(std::string_view name) {
  lanes_.push_back({std::string(name), 0, 0});
  return static_cast<std::uint32_t>(lanes_.size() - 1);
}

void WorkLog::add(LoggedWork work) {
  work.issued = lanes_[host].end;
  work.again = current_pass().second_run;
  work.backward = current_pass().backward;
  ++lanes_[work.lane].end;
  entries_.push_back(work);
}

void WorkLog::wait(std::uint32_t lane, LoggedPoint until) {
  if (lane == until.lane || until.end <= lanes_[until.lane].first) return;
  LoggedWork work;
  work.kind = LoggedWork::Kind::wait;
  work.lane = lane;
  work.until = until;
  add(work);
}

LoggedPoint WorkLog::end_of(std::uint32_t lane) const {
  return {lane, lanes_[lane].end};
}

void WorkLog::begin() {
  entries_.clear();
  for (Lane& lane : lanes_) lane.first = lane.end;
}

WorkLog* work_log() {
  return thread_work_log;
}

WorkLogGuard::WorkLogGuard(WorkLog* log) : previous_(thread_work_log) {
  thread_work_log = log;
}

WorkLogGuard::~WorkLogGuard() {
  thread_work_log = previous_;
}

}  // namespace tessera
