// Compressed data as the bytes that it stands for: gzip by zlib, Zstandard by its own library.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

class Decompressor {
 public:
  struct Step {
    std::size_t read = 0;     // bytes of the input that are used up
    std::size_t written = 0;  // bytes of the output
  };
  virtual ~Decompressor() = default;
  // Goes on with the next bytes. `in` may be empty: what is left inside is written. Throws
  // Error(data) that begins with the data's name if they are damaged; both formats have checksums.
  virtual Step run(std::span<const char> in, std::span<char> out) = 0;
  // True where the data may end. Several compressed parts may follow each other.
  [[nodiscard]] virtual bool may_end() const = 0;
};

// So many first bytes tell the compression.
inline constexpr std::size_t compression_mark_bytes = 10;

// By the first bytes of data; null if they are not compressed. `name` begins messages; it is a
// file's. Throws Error(data) for a compression that is not read (xz, bzip2, LZ4, compress, zip),
// and for a file whose name says that it is compressed, and that is not;
// Error(configuration) if the library cannot be loaded.
std::unique_ptr<Decompressor> make_decompressor(std::string_view beginning,
                                                const std::string& name);

// The name of what is in a file, in lower case: "rows.jsonl" of "rows.jsonl.gz" and "a.tar" of
// "A.TGZ". Without the endings of compressions that are not read, too.
std::string name_without_compression(std::string_view name);
bool is_named_compressed(std::string_view name);

}  // namespace tessera
