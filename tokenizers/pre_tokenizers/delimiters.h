// The treatment of the matches that a pre-tokenizer finds: the `behavior` of a tokenizer file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace tessera::tokenizers {

enum class DelimiterBehavior : std::uint8_t {
  removed,
  isolated,
  merged_with_previous,
  merged_with_next,
  contiguous,
};

DelimiterBehavior delimiter_behavior(const nlohmann::json& json, const char* otherwise,
                                     const std::string& source);

// Takes a text's parts in turn, each a delimiter or not, and calls give(begin, end) for the
// resulting pieces, including empty ones.
template <class Give>
class DelimiterMerger {
 public:
  DelimiterMerger(DelimiterBehavior behavior, Give give)
      : behavior_(behavior), give_(std::move(give)) {}

  void part(std::size_t begin, std::size_t end, bool delimiter) {
    switch (behavior_) {
      case DelimiterBehavior::removed:
        if (!delimiter) give_(begin, end);
        return;
      case DelimiterBehavior::isolated:
        give_(begin, end);
        return;
      case DelimiterBehavior::contiguous:
        if (open_ && delimiter == was_delimiter_) break;
        start(begin);
        break;
      case DelimiterBehavior::merged_with_previous:
        // A delimiter is joined to the part before it, unless that is a delimiter.
        if (!(open_ && delimiter && !was_delimiter_)) start(begin);
        break;
      case DelimiterBehavior::merged_with_next:
        if (!(open_ && !delimiter && was_delimiter_)) start(begin);
        break;
    }
    end_ = end;
    was_delimiter_ = delimiter;
  }
  void finish() {
    if (open_) give_(begin_, end_);
    open_ = false;
  }

 private:
  void start(std::size_t begin) {
    if (open_) give_(begin_, end_);
    open_ = true;
    begin_ = begin;
  }

  DelimiterBehavior behavior_;
  Give give_;
  bool open_ = false;
  bool was_delimiter_ = false;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace tessera::tokenizers
