// Reads the central directory of a zip archive, and checks it against the archive.
#include "checkpoint/formats/torch/zip.h"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "checkpoint/formats/pickle/pickle.h"
#include "checkpoint/io/crc32.h"

namespace tessera::checkpoint::formats {

namespace {

constexpr std::uint64_t end_bytes = 22;      // of the end of the central directory
constexpr std::uint64_t end64_bytes = 56;    // the same of ZIP64
constexpr std::uint64_t locator_bytes = 20;  // of the locator of the ZIP64 end
constexpr std::uint64_t central_bytes = 46;  // a record's part of the directory, less its names
constexpr std::uint64_t local_bytes = 30;    // a record's own header, less its names
constexpr std::uint64_t comment_limit = 65535;
constexpr std::uint64_t directory_limit = std::uint64_t{1} << 28;

std::uint64_t number_at(std::string_view bytes, std::uint64_t at, int width) {
  std::uint64_t value = 0;
  for (int i = width; i > 0; --i) {
    const char c = bytes[at + static_cast<std::uint64_t>(i) - 1];
    value = (value << 8) | static_cast<unsigned char>(c);
  }
  return value;
}

struct DirectoryPlace {
  std::uint64_t offset = 0, bytes = 0, records = 0;
  std::uint64_t end = 0;  // the directory and the bytes behind it must end before this
};

struct CentralRecord {
  ZipRecord record;
  std::uint64_t local = 0;  // offset of its own header
};

class DirectoryReader {
 public:
  DirectoryReader(const ReadBytes& read, std::uint64_t bytes, const std::string& source)
      : read_(read), bytes_(bytes), source_(source) {}

  std::uint64_t directory_bytes() { return find_directory().bytes; }

  std::vector<ZipRecord> run() {
    const DirectoryPlace place = find_directory();
    std::vector<CentralRecord> found = read_directory(place);
    std::sort(found.begin(), found.end(),
              [](const CentralRecord& a, const CentralRecord& b) { return a.local < b.local; });
    std::uint64_t before = 0;
    for (CentralRecord& each : found) {
      check(each.local >= before, "has records that share bytes");
      before = locate(each, place.offset);
    }
    std::vector<ZipRecord> records;
    records.reserve(found.size());
    for (CentralRecord& each : found) records.push_back(std::move(each.record));
    std::sort(records.begin(), records.end(),
              [](const ZipRecord& a, const ZipRecord& b) { return a.name < b.name; });
    for (std::size_t i = 1; i < records.size(); ++i) {
      if (records[i - 1].name == records[i].name) {
        refuse(fmt::format("has the record {} twice", shown(records[i].name)));
      }
    }
    return records;
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    fail(ErrorCode::checkpoint, "{} {}: the zip archive is damaged or not a torch.save file",
         source_, problem);
  }
  void check(bool condition, const char* problem) const {
    if (!condition) refuse(problem);
  }
  std::string read(std::uint64_t offset, std::uint64_t bytes) const {
    check(offset <= bytes_ && bytes <= bytes_ - offset, "is cut short");
    std::string out(bytes, '\0');
    if (bytes > 0) read_(offset, out.data(), out.size());
    return out;
  }

  DirectoryPlace find_directory() {
    check(bytes_ >= end_bytes, "is cut short");
    // Most archives have no comment: try a short read first.
    for (const std::uint64_t look : {std::uint64_t{4096}, end_bytes + comment_limit}) {
      const std::uint64_t length = std::min(bytes_, look);
      tail_ = read(bytes_ - length, length);
      for (std::uint64_t at = length - end_bytes + 1; at > 0; --at) {
        const std::uint64_t end = at - 1;
        if (number_at(tail_, end, 4) == 0x06054b50 &&
            end + end_bytes + number_at(tail_, end + 20, 2) == length) {
          return read_end(bytes_ - length + end, std::string_view(tail_).substr(end, end_bytes));
        }
      }
    }
    refuse("has no end of a central directory");
  }

  DirectoryPlace read_end(std::uint64_t end, std::string_view text) const {
    DirectoryPlace place{number_at(text, 16, 4), number_at(text, 12, 4), number_at(text, 10, 2),
                         end};
    check(number_at(text, 4, 2) == number_at(text, 6, 2), "is a part of a split archive");
    if (end >= locator_bytes) {
      const std::string locator = read(end - locator_bytes, locator_bytes);
      if (number_at(locator, 0, 4) == 0x07064b50) {
        const std::uint64_t at = number_at(locator, 8, 8);
        check(at <= end - locator_bytes && end - locator_bytes - at >= end64_bytes,
              "has a ZIP64 directory outside of the file");
        const std::string wide = read(at, end64_bytes);
        check(number_at(wide, 0, 4) == 0x06064b50, "has no ZIP64 directory at the stated place");
        place = {number_at(wide, 48, 8), number_at(wide, 40, 8), number_at(wide, 32, 8), at};
      }
    }
    check(place.offset <= place.end && place.bytes <= place.end - place.offset,
          "has a central directory outside of the file");
    check(place.bytes <= directory_limit && place.records <= place.bytes / central_bytes,
          "has a central directory of impossible size");
    return place;
  }

  std::vector<CentralRecord> read_directory(const DirectoryPlace& place) const {
    const std::string text = read(place.offset, place.bytes);
    std::vector<CentralRecord> records;
    records.reserve(place.records);
    std::uint64_t at = 0;
    for (std::uint64_t i = 0; i < place.records; ++i) {
      check(text.size() - at >= central_bytes && number_at(text, at, 4) == 0x02014b50,
            "has a damaged central directory");
      const std::uint64_t name_bytes = number_at(text, at + 28, 2);
      const std::uint64_t extra_bytes = number_at(text, at + 30, 2);
      const std::uint64_t more = name_bytes + extra_bytes + number_at(text, at + 32, 2);
      check(text.size() - at - central_bytes >= more, "has a damaged central directory");
      const std::string_view view(text);
      records.push_back(read_central(view.substr(at, central_bytes),
                                     view.substr(at + central_bytes, name_bytes),
                                     view.substr(at + central_bytes + name_bytes, extra_bytes)));
      at += central_bytes + more;
    }
    check(at == text.size(), "has more in its central directory than its records");
    return records;
  }

  CentralRecord read_central(std::string_view fixed, std::string_view name,
                             std::string_view extra) const {
    check((number_at(fixed, 8, 2) & 0x2041) == 0, "is encrypted");
    CentralRecord out;
    out.record.compressed = number_at(fixed, 10, 2) != 0;
    out.record.name = name;
    out.record.crc = static_cast<std::uint32_t>(number_at(fixed, 16, 4));
    std::uint64_t stored = number_at(fixed, 20, 4);
    std::uint64_t size = number_at(fixed, 24, 4);
    out.local = number_at(fixed, 42, 4);
    widen(extra, {&size, &stored, &out.local});
    check(out.record.compressed || stored == size, "has a record of two sizes");
    out.record.bytes = stored;
    const bool plain = !name.empty() && name.front() != '/' && name.find('\\') == name.npos &&
                       name.find('\0') == name.npos && name.find("..") == name.npos;
    if (!plain) refuse(fmt::format("has a record with the name {}", shown(name)));
    return out;
  }

  // 32-bit numbers of value 0xffffffff stand in the ZIP64 field, in this order.
  void widen(std::string_view extra, std::initializer_list<std::uint64_t*> numbers) const {
    constexpr std::uint64_t see_below = 0xffffffff;
    if (std::none_of(numbers.begin(), numbers.end(),
                     [](const std::uint64_t* number) { return *number == see_below; })) {
      return;
    }
    while (extra.size() >= 4) {
      const std::uint64_t kind = number_at(extra, 0, 2);
      const std::uint64_t length = number_at(extra, 2, 2);
      extra.remove_prefix(4);
      check(length <= extra.size(), "has a damaged central directory");
      if (kind == 1) {
        std::uint64_t at = 0;
        for (std::uint64_t* number : numbers) {
          if (*number != see_below) continue;
          check(length - at >= 8, "has a damaged ZIP64 field");
          *number = number_at(extra, at, 8);
          at += 8;
        }
        return;
      }
      extra.remove_prefix(length);
    }
    refuse("lacks a ZIP64 field");
  }

  // Sets the record's offset and returns where its data ends.
  std::uint64_t locate(CentralRecord& each, std::uint64_t directory) const {
    check(each.local <= directory && directory - each.local >= local_bytes,
          "has a record outside of the file");
    const std::string header = read(each.local, local_bytes);
    check(number_at(header, 0, 4) == 0x04034b50 &&
              (number_at(header, 8, 2) != 0) == each.record.compressed,
          "has a record without its header");
    const std::uint64_t name_bytes = number_at(header, 26, 2);
    const std::uint64_t data = each.local + local_bytes + name_bytes + number_at(header, 28, 2);
    check(name_bytes == each.record.name.size() && data <= directory &&
              each.record.bytes <= directory - data,
          "has a record outside of the file");
    each.record.offset = data;
    return data + each.record.bytes;
  }

  const ReadBytes& read_;
  std::uint64_t bytes_;
  const std::string& source_;
  std::string tail_;
};

// -- Writing

constexpr std::uint64_t zip_alignment = 64;
constexpr std::uint64_t wide_limit = 0xffffffff;  // from here on numbers need ZIP64

void put_number(std::string& out, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i) {
    out += static_cast<char>(i < 8 ? (value >> (8 * i)) & 0xff : 0);
  }
}

std::uint64_t header_of(const ZipPlan& record) {
  // Padding behind the name aligns the data: a field has at least four bytes.
  const std::uint64_t wide = record.bytes >= wide_limit ? 20 : 0;
  return local_bytes + record.name.size() + wide + 4;
}

std::uint64_t local_offset_of(const std::vector<ZipPlan>& records, std::size_t i) {
  return i == 0 ? 0 : records[i - 1].offset + records[i - 1].bytes;
}

std::string central_of(const ZipPlan& record, std::uint64_t local, std::uint32_t crc) {
  std::string wide;
  const bool wide_size = record.bytes >= wide_limit;
  const bool wide_offset = local >= wide_limit;
  if (wide_size) {
    put_number(wide, record.bytes, 8);
    put_number(wide, record.bytes, 8);
  }
  if (wide_offset) put_number(wide, local, 8);
  std::string out;
  put_number(out, 0x02014b50, 4);
  put_number(out, wide.empty() ? 20 : 45, 2);
  put_number(out, wide.empty() ? 20 : 45, 2);
  put_number(out, 0x800, 2);  // the name is UTF-8
  put_number(out, 0, 6);      // stored; no time
  put_number(out, crc, 4);
  put_number(out, wide_size ? wide_limit : record.bytes, 4);
  put_number(out, wide_size ? wide_limit : record.bytes, 4);
  put_number(out, record.name.size(), 2);
  put_number(out, wide.empty() ? 0 : wide.size() + 4, 2);
  put_number(out, 0, 10);  // no comment, one volume, no attributes
  put_number(out, wide_offset ? wide_limit : local, 4);
  out += record.name;
  if (!wide.empty()) {
    put_number(out, 1, 2);
    put_number(out, wide.size(), 2);
    out += wide;
  }
  return out;
}

std::string end_of(std::uint64_t records, std::uint64_t offset, std::uint64_t bytes) {
  std::string out;
  const bool wide = records >= 0xffff || offset >= wide_limit || bytes >= wide_limit;
  if (wide) {
    put_number(out, 0x06064b50, 4);
    put_number(out, end64_bytes - 12, 8);
    put_number(out, 45, 2);
    put_number(out, 45, 2);
    put_number(out, 0, 8);
    put_number(out, records, 8);
    put_number(out, records, 8);
    put_number(out, bytes, 8);
    put_number(out, offset, 8);
    put_number(out, 0x07064b50, 4);
    put_number(out, 0, 4);
    put_number(out, offset + bytes, 8);
    put_number(out, 1, 4);
  }
  put_number(out, 0x06054b50, 4);
  put_number(out, 0, 4);
  put_number(out, wide ? 0xffff : records, 2);
  put_number(out, wide ? 0xffff : records, 2);
  put_number(out, wide ? wide_limit : bytes, 4);
  put_number(out, wide ? wide_limit : offset, 4);
  put_number(out, 0, 2);
  return out;
}

std::string local_of(const ZipPlan& record, std::uint64_t local, std::uint32_t crc) {
  const bool wide = record.bytes >= wide_limit;
  std::string out;
  put_number(out, 0x04034b50, 4);
  put_number(out, wide ? 45 : 20, 2);
  put_number(out, 0x800, 2);
  put_number(out, 0, 6);
  put_number(out, crc, 4);
  put_number(out, wide ? wide_limit : record.bytes, 4);
  put_number(out, wide ? wide_limit : record.bytes, 4);
  put_number(out, record.name.size(), 2);
  put_number(out, record.offset - local - local_bytes - record.name.size(), 2);
  out += record.name;
  if (wide) {
    put_number(out, 1, 2);
    put_number(out, 16, 2);
    put_number(out, record.bytes, 8);
    put_number(out, record.bytes, 8);
  }
  const std::uint64_t padding = record.offset - local - header_of(record);
  put_number(out, 0x4246, 2);
  put_number(out, padding, 2);
  out.append(padding, 'Z');
  return out;
}

}  // namespace

ZipDirectory::ZipDirectory(const ReadBytes& read, std::uint64_t bytes, const std::string& source)
    : records_(DirectoryReader(read, bytes, source).run()) {}

std::uint64_t zip_directory_bytes(const ReadBytes& read, std::uint64_t bytes,
                                  const std::string& source) {
  return DirectoryReader(read, bytes, source).directory_bytes();
}

const ZipRecord* ZipDirectory::find(std::string_view name) const {
  const auto found =
      std::lower_bound(records_.begin(), records_.end(), name,
                       [](const ZipRecord& record, std::string_view n) { return record.name < n; });
  return found != records_.end() && found->name == name ? &*found : nullptr;
}

std::uint64_t plan_zip(std::vector<ZipPlan>& records) {
  std::uint64_t at = 0;
  std::uint64_t directory = 0;
  for (ZipPlan& record : records) {
    const std::uint64_t local = at;
    record.offset = (at + header_of(record) + zip_alignment - 1) / zip_alignment * zip_alignment;
    at = record.offset + record.bytes;
    directory += central_of(record, local, 0).size();
  }
  return at + directory + end_of(records.size(), at, directory).size();
}

ZipWriter::ZipWriter(File& file, std::uint64_t base, std::vector<ZipPlan> records)
    : file_(&file), base_(base), records_(std::move(records)), crcs_(records_.size(), 0) {
  skip_complete();
}

std::uint64_t ZipWriter::missing() const {
  return current_ < records_.size() ? records_[current_].bytes - written_ : 0;
}

// Records without bytes are complete at once.
void ZipWriter::skip_complete() {
  while (current_ < records_.size() && written_ == records_[current_].bytes) {
    const std::uint64_t local = local_offset_of(records_, current_);
    const std::string header = local_of(records_[current_], local, crcs_[current_]);
    file_->write_at(base_ + local, header.data(), header.size());
    ++current_;
    written_ = 0;
  }
}

void ZipWriter::append(const void* data, std::size_t bytes) {
  if (bytes == 0) return;
  TESSERA_REQUIRE(bytes <= missing(), "a zip record of {} bytes is given more",
                  current_ < records_.size() ? records_[current_].bytes : 0);
  file_->write_at(base_ + records_[current_].offset + written_, data, bytes);
  crcs_[current_] = crc32(crcs_[current_], data, bytes);
  written_ += bytes;
  skip_complete();
}

void ZipWriter::finish() {
  TESSERA_REQUIRE(current_ == records_.size(), "a zip archive is finished {} bytes early",
                  missing());
  const std::uint64_t directory = local_offset_of(records_, records_.size());
  std::string out;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    out += central_of(records_[i], local_offset_of(records_, i), crcs_[i]);
  }
  out += end_of(records_.size(), directory, out.size());
  file_->write_at(base_ + directory, out.data(), out.size());
}

}  // namespace tessera::checkpoint::formats
