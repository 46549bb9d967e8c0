// TensorBoard's event files: TFRecord records, each with an Event of TensorFlow's event.proto, with
// the few fields that numbers need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::logs {

// CRC-32C (Castagnoli), reflected, as TFRecord computes it before masking.
std::uint32_t crc32c(std::string_view bytes);

// length, its masked CRC, the bytes, their masked CRC.
std::string tf_record(std::string_view bytes);
// Removes the first record from `bytes` and returns it. Returns none if it is damaged or cut off.
std::optional<std::string> take_tf_record(std::string_view& bytes);

// The first event of a file.
std::string version_event(double wall_time);
// Numbers of one step, by tag.
std::string scalar_event(double wall_time, std::int64_t step,
                         const std::vector<std::pair<std::string, double>>& numbers);
// The step of an event, 0 if it has none; nullopt if the bytes are not an Event.
std::optional<std::int64_t> step_of_event(std::string_view event);

}  // namespace tessera::logs
