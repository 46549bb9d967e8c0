// The files in a tar archive, in their order.
// Source: "ustar Interchange Format" and "pax Interchange Format" of POSIX.1-2017, and "Basic Tar
// Format" of GNU tar's manual for long names and large sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/data/text_reader.h"

namespace tessera::tasks {

// Errors are Error(data) that begin with the archive's name: a header that is damaged or truncated,
// a member that ends early. The blocks of zeros at the end may be missing, as for other readers.
class TarReader {
 public:
  // Reads on from where `text` is, and keeps the reference. A compressed archive is decompressed.
  explicit TarReader(TextReader& text) : text_(text) {}

  struct Member {
    std::string name;  // the path in the archive
    std::int64_t bytes = 0;
    // Why its contents are not in this place ("a hard link to 0.txt"); empty: they are.
    std::string elsewhere = {};
  };
  // The next file, link or part of a file; folders and devices are passed over. None behind the
  // last one. Archives may follow each other. Contents that have not been read are skipped.
  std::optional<Member> next();
  // The contents of the member that next() gave. Called once for each, for at most 64 MiB.
  std::string read();

  [[nodiscard]] const std::string& name() const { return text_.name(); }

 private:
  struct Header;
  [[nodiscard]] bool fill(std::size_t bytes);
  void skip_contents();
  std::string take(std::int64_t bytes);
  std::optional<Header> read_header();
  static std::string where_contents_are(const Header& header, bool sparse);

  TextReader& text_;
  std::string bytes_;
  std::size_t begin_ = 0;  // of what has not been taken
  std::int64_t left_ = 0;  // of the member's contents and their padding
  std::int64_t member_bytes_ = 0;
  std::string member_;
};

}  // namespace tessera::tasks
