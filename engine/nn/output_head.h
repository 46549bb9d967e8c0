// Which linear layer makes a model's results, by its name.
#pragma once

#include <array>
#include <string_view>

namespace tessera::nn {

// True for "lm_head" of a language model and "classifier" of a model of classes, also at the end of
// a name after a dot. Where adapters, zeros or int8 weights are for all linear layers, they leave
// these out.
inline bool is_output_head(std::string_view layer) {
  constexpr std::array<std::string_view, 2> heads{"lm_head", "classifier"};
  for (const std::string_view head : heads) {
    if (!layer.ends_with(head)) continue;
    const std::string_view before = layer.substr(0, layer.size() - head.size());
    if (before.empty() || before.ends_with('.')) return true;
  }
  return false;
}

}  // namespace tessera::nn
