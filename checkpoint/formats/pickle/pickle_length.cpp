// Steps over opcodes and their arguments.
#include "checkpoint/formats/pickle/pickle_length.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstddef>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"

namespace tessera::checkpoint::formats {

namespace {

// How an opcode's argument ends.
enum class Argument : std::uint8_t { unknown, fixed, counted, lines };
struct OpcodeForm {
  Argument argument = Argument::unknown;
  int size = 0;  // bytes of the argument, bytes of its length, or number of lines
};

constexpr std::array<OpcodeForm, 256> opcode_forms = [] {
  std::array<OpcodeForm, 256> forms{};
  const auto set = [&](std::initializer_list<int> opcodes, Argument argument, int size) {
    for (const int opcode : opcodes) forms[static_cast<std::size_t>(opcode)] = {argument, size};
  };
  set({'(',  ')',  '.',  '0',  '1',  '2',  ']',  '}',  'N',  'Q',  'R',  'a',
       'b',  'd',  'e',  'l',  'o',  's',  't',  'u',  0x81, 0x85, 0x86, 0x87,
       0x88, 0x89, 0x8f, 0x90, 0x91, 0x92, 0x93, 0x94, 0x97, 0x98},
      Argument::fixed, 0);
  set({'K', 'h', 'q', 0x80, 0x82}, Argument::fixed, 1);
  set({'M', 0x83}, Argument::fixed, 2);
  set({'J', 'j', 'r', 0x84}, Argument::fixed, 4);
  set({'G', 0x95}, Argument::fixed, 8);
  set({'U', 'C', 0x8a, 0x8c}, Argument::counted, 1);
  set({'T', 'X', 'B', 0x8b}, Argument::counted, 4);
  set({0x8d, 0x8e, 0x96}, Argument::counted, 8);
  set({'F', 'I', 'L', 'P', 'S', 'V', 'g', 'p'}, Argument::lines, 1);
  set({'c', 'i'}, Argument::lines, 2);
  return forms;
}();

class OpcodeReader {
 public:
  OpcodeReader(const ReadBytes& read, std::uint64_t begin, std::uint64_t end,
               const std::string& source)
      : read_(read), at_(begin), end_(end), source_(source) {}

  [[nodiscard]] std::uint64_t at() const { return at_; }

  unsigned char next() {
    check(at_ < end_);
    if (at_ < window_at_ || at_ - window_at_ >= window_bytes_) {
      window_at_ = at_;
      window_bytes_ = static_cast<std::size_t>(std::min<std::uint64_t>(end_ - at_, window_.size()));
      read_(at_, window_.data(), window_bytes_);
    }
    return static_cast<unsigned char>(window_[static_cast<std::size_t>(at_++ - window_at_)]);
  }
  void skip(std::uint64_t bytes) {
    check(bytes <= end_ - at_);
    at_ += bytes;
  }
  std::uint64_t number(int bytes) {
    std::uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value |= std::uint64_t{next()} << (8 * i);
    return value;
  }

 private:
  void check(bool condition) const {
    TESSERA_CHECK(condition, ErrorCode::checkpoint,
                  "{} is cut short: a pickle in it has no end, or has more than {} bytes", source_,
                  pickle_bytes_limit);
  }
  const ReadBytes& read_;
  std::uint64_t at_;
  std::uint64_t end_;
  const std::string& source_;
  std::array<char, 1 << 14> window_{};
  std::uint64_t window_at_ = 0;
  std::size_t window_bytes_ = 0;
};

}  // namespace

std::uint64_t pickle_length(const ReadBytes& read, std::uint64_t begin, std::uint64_t file_bytes,
                            const std::string& source) {
  TESSERA_CHECK(begin < file_bytes, ErrorCode::checkpoint,
                "{} is cut short: it ends where a pickle should begin", source);
  const std::uint64_t most = std::min<std::uint64_t>(file_bytes - begin, pickle_bytes_limit);
  OpcodeReader in(read, begin, begin + most, source);
  for (;;) {
    const unsigned char opcode = in.next();
    if (opcode == '.') return in.at() - begin;
    const OpcodeForm form = opcode_forms[opcode];
    switch (form.argument) {
      case Argument::fixed:
        in.skip(static_cast<std::uint64_t>(form.size));
        break;
      case Argument::counted:
        in.skip(in.number(form.size));
        break;
      case Argument::lines:
        for (int line = 0; line < form.size; ++line) {
          while (in.next() != '\n') {
          }
        }
        break;
      case Argument::unknown:
        fail(ErrorCode::checkpoint, "{} has {:#04x} at byte {}, where a pickle's opcode belongs",
             source, opcode, in.at() - 1);
    }
  }
}

}  // namespace tessera::checkpoint::formats
