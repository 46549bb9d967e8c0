// Blocks of 512 bytes: a header, and the contents filled up with zeros. All numbers are untrusted.
#include "tasks/columnar/tar/tar_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "base/error.h"

namespace tessera::tasks {
namespace {

constexpr std::size_t tar_block = 512;
constexpr std::int64_t archive_read = std::int64_t{1} << 20;
constexpr std::int64_t largest_member = std::int64_t{64} << 20;
constexpr std::int64_t longest_extension = std::int64_t{1} << 20;  // a pax header, or a long name

// The places of a header's fields.
constexpr std::size_t name_at = 0, name_bytes = 100;
constexpr std::size_t size_at = 124, size_bytes = 12;
constexpr std::size_t checksum_at = 148, checksum_bytes = 8;
constexpr std::size_t type_at = 156;
constexpr std::size_t link_at = 157;
constexpr std::size_t magic_at = 257;
constexpr std::size_t prefix_at = 345, prefix_bytes = 155;

std::string_view text_field(std::string_view block, std::size_t at, std::size_t bytes) {
  const std::string_view field = block.substr(at, bytes);
  return field.substr(0, field.find('\0'));
}

// Octal digits with spaces around them, or, with the highest bit set, a big-endian number. None if
// it is neither, or negative.
std::optional<std::int64_t> number_field(std::string_view block, std::size_t at,
                                         std::size_t bytes) {
  std::string_view field = block.substr(at, bytes);
  if ((static_cast<unsigned char>(field.front()) & 0x80) != 0) {
    std::int64_t number = static_cast<unsigned char>(field.front()) & 0x7f;
    for (const char c : field.substr(1)) {
      if (number > std::numeric_limits<std::int64_t>::max() >> 8) return std::nullopt;
      number = number << 8 | static_cast<unsigned char>(c);
    }
    return number;
  }
  field = field.substr(0, field.find('\0'));
  while (field.starts_with(' ')) field.remove_prefix(1);
  while (field.ends_with(' ')) field.remove_suffix(1);
  std::int64_t number = 0;
  if (field.empty()) return number;
  const char* const end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(field.data(), end, number, 8);
  if (error != std::errc{} || stop != end || number < 0) return std::nullopt;
  return number;
}

// The sum of the header's bytes, its own field as spaces.
std::int64_t checksum_of(std::string_view block) {
  std::int64_t sum = static_cast<std::int64_t>(' ') * checksum_bytes;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const bool own = i >= checksum_at && i < checksum_at + checksum_bytes;
    if (!own) sum += static_cast<unsigned char>(block[i]);
  }
  return sum;
}

std::int64_t padded(std::int64_t bytes) {
  constexpr auto block = static_cast<std::int64_t>(tar_block);
  return (bytes + block - 1) / block * block;
}

// The changes of a pax header to the member behind it.
struct Extension {
  std::optional<std::string> name, sparse_name;
  std::optional<std::int64_t> bytes;
  bool sparse = false;
};

// Records "<length> <key>=<value>\n". False if one is damaged.
bool read_pax(std::string_view records, Extension& extension) {
  while (!records.empty()) {
    std::size_t length = 0;
    const auto [stop, error] =
        std::from_chars(records.data(), records.data() + records.size(), length);
    const auto digits = static_cast<std::size_t>(stop - records.data());
    if (error != std::errc{} || length <= digits + 1 || length > records.size()) return false;
    std::string_view record = records.substr(0, length);
    if (record[digits] != ' ' || record.back() != '\n') return false;
    record = record.substr(digits + 1, length - digits - 2);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(equals + 1);
    if (key == "path") extension.name = std::string(value);
    if (key == "GNU.sparse.name") extension.sparse_name = std::string(value);
    if (key.starts_with("GNU.sparse.")) extension.sparse = true;
    if (key == "size") {
      std::int64_t bytes = 0;
      const char* const end = value.data() + value.size();
      const auto number = std::from_chars(value.data(), end, bytes);
      if (number.ec != std::errc{} || number.ptr != end || bytes < 0) return false;
      extension.bytes = bytes;
    }
    records.remove_prefix(length);
  }
  return true;
}

}  // namespace

struct TarReader::Header {
  std::string name;
  std::string link;
  std::int64_t bytes = 0;
  char type = '0';
};

std::string TarReader::where_contents_are(const Header& header, bool sparse) {
  if (header.type == '1') return fmt::format("a hard link to '{}'", header.link);
  if (header.type == '2') return fmt::format("a symbolic link to '{}'", header.link);
  if (header.type == 'M') return "the rest of a file of another volume";
  return sparse || header.type == 'S' ? "a sparse file" : "";
}

// True if so many bytes are there.
bool TarReader::fill(std::size_t bytes) {
  if (bytes_.size() - begin_ >= bytes) return true;
  bytes_.erase(0, begin_);
  begin_ = 0;
  while (bytes_.size() < bytes) {
    if (!text_.append(bytes_, archive_read)) return false;
  }
  return true;
}

std::string TarReader::take(std::int64_t bytes) {
  TESSERA_CHECK(fill(static_cast<std::size_t>(bytes)), ErrorCode::data,
                "{} ends within its member '{}'; the file is truncated", name(), member_);
  std::string taken = bytes_.substr(begin_, static_cast<std::size_t>(bytes));
  begin_ += static_cast<std::size_t>(bytes);
  left_ -= bytes;
  return taken;
}

void TarReader::skip_contents() {
  while (left_ > 0) {
    TESSERA_CHECK(fill(1), ErrorCode::data, "{} ends within its member '{}'; the file is truncated",
                  name(), member_);
    const auto held = static_cast<std::int64_t>(bytes_.size() - begin_);
    const std::int64_t skipped = std::min(held, left_);
    begin_ += static_cast<std::size_t>(skipped);
    left_ -= skipped;
  }
}

// None at the end. Blocks of zeros end an archive; some writers leave them out, and another archive
// may follow.
std::optional<TarReader::Header> TarReader::read_header() {
  skip_contents();
  std::string block;
  do {
    if (!fill(1)) return std::nullopt;
    TESSERA_CHECK(fill(tar_block), ErrorCode::data, "{} ends within the header {}", name(),
                  member_.empty()
                      ? "of its first member, or is not a tar archive"
                      : fmt::format("behind its member '{}'; the file is truncated", member_));
    block = bytes_.substr(begin_, tar_block);
    begin_ += tar_block;
  } while (block.find_first_not_of('\0') == std::string::npos);
  const auto checksum = number_field(block, checksum_at, checksum_bytes);
  const auto bytes = number_field(block, size_at, size_bytes);
  TESSERA_CHECK(checksum == checksum_of(block) && bytes, ErrorCode::data, "{}: the header {}",
                name(),
                member_.empty() ? "of its first member is damaged, or this is not a tar archive"
                                : fmt::format("behind member '{}' is damaged", member_));
  Header header{std::string(text_field(block, name_at, name_bytes)),
                std::string(text_field(block, link_at, name_bytes)), *bytes, block[type_at]};
  // The map of GNU's sparse file goes on in further blocks.
  constexpr std::size_t map_goes_on_at = 482, goes_on_further_at = 504;
  for (bool more = header.type == 'S' && block[map_goes_on_at] != '\0'; more;) {
    more = take(tar_block)[goes_on_further_at] != '\0';
  }
  // GNU's own format has other fields in the place of the prefix.
  if (std::string_view(block).substr(magic_at, 6) == std::string_view("ustar\0", 6)) {
    const std::string_view prefix = text_field(block, prefix_at, prefix_bytes);
    if (!prefix.empty()) header.name = std::string(prefix) + "/" + header.name;
  }
  return header;
}

std::optional<TarReader::Member> TarReader::next() {
  Extension extension;
  while (auto header = read_header()) {
    const bool is_extension = header->type == 'x' || header->type == 'L';
    const bool is_global = header->type == 'g' || header->type == 'K';
    if (!is_extension && !is_global) {
      if (extension.name) header->name = *extension.name;
      if (extension.bytes) header->bytes = *extension.bytes;
    }
    TESSERA_CHECK(
        header->bytes <= std::numeric_limits<std::int64_t>::max() - std::int64_t{tar_block},
        ErrorCode::data, "{}: member '{}' has {} bytes", name(), header->name, header->bytes);
    member_ = header->name;
    member_bytes_ = header->bytes;
    // Links, devices and folders have no contents, whatever their size says.
    const bool has_contents = header->type < '1' || header->type > '6';
    left_ = has_contents ? padded(header->bytes) : 0;
    if (is_extension) {
      TESSERA_CHECK(header->bytes <= longest_extension, ErrorCode::data,
                    "{}: a name or pax header of {} bytes", name(), header->bytes);
      const std::string contents = take(header->bytes);
      if (header->type == 'L') {
        extension.name = contents.substr(0, contents.find('\0'));
      } else {
        TESSERA_CHECK(read_pax(contents, extension), ErrorCode::data, "{}: a pax header is damaged",
                      name());
      }
      continue;
    }
    const std::string elsewhere = where_contents_are(*header, extension.sparse);
    const bool is_file = header->type == '0' || header->type == '\0' || header->type == '7';
    if ((is_file || !elsewhere.empty()) && !header->name.ends_with('/')) {
      return Member{extension.sparse_name.value_or(header->name), header->bytes, elsewhere};
    }
    if (!is_global) extension = {};
  }
  return std::nullopt;
}

std::string TarReader::read() {
  TESSERA_CHECK(member_bytes_ <= largest_member, ErrorCode::data,
                "{}: member '{}' has {} bytes, and at most {} are read", name(), member_,
                member_bytes_, largest_member);
  return take(member_bytes_);
}

}  // namespace tessera::tasks
