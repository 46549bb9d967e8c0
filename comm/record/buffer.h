// Collective memory of a plan: an address, a size, and the protocol of Buffer.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "comm/held_memory.h"
#include "engine/device/backend.h"

namespace tessera::comm {

class RecordBuffer final : public Buffer {
 public:
  RecordBuffer(Device device, std::string_view name, std::size_t bytes, Sharing sharing,
               HeldBlock held)
      : name_(name),
        data_(backend_of(device.type).memory_source(device)->take(bytes)),
        bytes_(bytes),
        sharing_(sharing),
        held_(std::move(held)) {}

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::byte* data() const override { return data_; }
  [[nodiscard]] std::size_t bytes() const override { return bytes_; }
  [[nodiscard]] Sharing sharing() const override { return sharing_; }
  void release() override {
    TESSERA_REQUIRE(state_ == State::published, "release of '{}': it holds no contents", name_);
    state_ = State::released;
  }

  void acquire() {
    TESSERA_REQUIRE(state_ != State::published,
                    "acquire of '{}': this rank has not released its contents", name_);
    state_ = State::acquired;
  }
  void publish() {
    TESSERA_REQUIRE(state_ == State::acquired, "'{}' is published without acquire()", name_);
    state_ = State::published;
  }

 private:
  enum class State : std::uint8_t { released, acquired, published };

  std::string name_;
  std::byte* data_;
  std::size_t bytes_;
  Sharing sharing_;
  State state_ = State::released;
  HeldBlock held_;
};

}  // namespace tessera::comm
