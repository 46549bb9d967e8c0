// A base as adapters that were trained over codes saw it (QLoRA).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/quantized.h"
#include "checkpoint/formats/format.h"

namespace tessera::checkpoint {

// The weights of linear layers but the head become the numbers of their codes, rounded to the dtype
// in which they are stored; all else stays.
class NumbersOfCodes : public formats::Source {
 public:
  // True for the weights that became numbers of codes.
  [[nodiscard]] virtual bool is_of_codes(std::size_t tensor) const = 0;
  // Elements [first, first + count) of such a weight before they are rounded.
  virtual void read_numbers(std::size_t tensor, std::int64_t first, std::int64_t count,
                            float* numbers) = 0;
};

// `layers` is the result of ConvertOptions::lies_in_out for this model; Error(configuration) if it
// is empty.
std::unique_ptr<NumbersOfCodes> open_numbers_of_codes(std::unique_ptr<formats::Source> base,
                                                      QuantizedFormat format,
                                                      const std::map<std::string, bool>& layers);

}  // namespace tessera::checkpoint
