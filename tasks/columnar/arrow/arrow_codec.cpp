// LZ4 frames and Zstandard by their own libraries, which few users need and every Debian has.
#include "tasks/columnar/arrow/arrow_codec.h"

#include <cstddef>

#include "base/error.h"
#include "engine/data/compression/codec_library.h"

namespace tessera::tasks {
namespace {

// lz4frame.h and zstd.h, in the parts that are stable since their first releases.
struct Lz4 {
  CodecLibrary library{"liblz4.so.1", "liblz4-1"};
  std::size_t (*create)(void**, unsigned) =
      library.function<std::size_t(void**, unsigned)>("LZ4F_createDecompressionContext");
  std::size_t (*release)(void*) =
      library.function<std::size_t(void*)>("LZ4F_freeDecompressionContext");
  std::size_t (*run)(void*, void*, std::size_t*, const void*, std::size_t*, const void*) =
      library.function<std::size_t(void*, void*, std::size_t*, const void*, std::size_t*,
                                   const void*)>("LZ4F_decompress");
  unsigned (*failed)(std::size_t) = library.function<unsigned(std::size_t)>("LZ4F_isError");
};
constexpr unsigned lz4_frame_version = 100;

struct Zstd {
  CodecLibrary library{"libzstd.so.1", "libzstd1"};
  std::size_t (*run)(void*, std::size_t, const void*, std::size_t) =
      library.function<std::size_t(void*, std::size_t, const void*, std::size_t)>(
          "ZSTD_decompress");
  unsigned (*failed)(std::size_t) = library.function<unsigned(std::size_t)>("ZSTD_isError");
};

bool decompress_lz4(std::span<const char> bytes, std::span<char> out) {
  static const Lz4 lz4;
  void* context = nullptr;
  TESSERA_CHECK(lz4.failed(lz4.create(&context, lz4_frame_version)) == 0, ErrorCode::out_of_memory,
                "no memory for LZ4");
  std::size_t read = 0;
  std::size_t written = 0;
  std::size_t left = 1;  // 0 at the end of a frame
  while (left != 0) {
    std::size_t to = out.size() - written;
    std::size_t from = bytes.size() - read;
    left = lz4.run(context, out.data() + written, &to, bytes.data() + read, &from, nullptr);
    if (lz4.failed(left) != 0) break;
    read += from;
    written += to;
    if (to == 0 && from == 0) break;  // no progress: more bytes are wanted, or more space
  }
  lz4.release(context);
  return left == 0 && written == out.size() && read == bytes.size();
}

bool decompress_zstd(std::span<const char> bytes, std::span<char> out) {
  static const Zstd zstd;
  const std::size_t written = zstd.run(out.data(), out.size(), bytes.data(), bytes.size());
  return zstd.failed(written) == 0 && written == out.size();
}

}  // namespace

bool decompress(ArrowCodec codec, std::span<const char> bytes, std::span<char> out) {
  switch (codec) {
    case ArrowCodec::lz4_frame:
      return decompress_lz4(bytes, out);
    case ArrowCodec::zstd:
      return decompress_zstd(bytes, out);
    case ArrowCodec::none:
      break;
  }
  misuse("no codec to decompress with");
}

}  // namespace tessera::tasks
