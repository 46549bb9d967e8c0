// Reads with a limit, which also holds for files whose size is not known beforehand.
#include "base/text/small_file.h"

#include <cerrno>
#include <fstream>
#include <system_error>

#include "base/error.h"

namespace tessera {

std::string read_small_file(const std::filesystem::path& path, const std::string& what) {
  constexpr std::uintmax_t largest = std::uintmax_t{1} << 20;
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  TESSERA_CHECK(std::filesystem::exists(status), ErrorCode::configuration, "{} {} does not exist",
                what, path.string());
  TESSERA_CHECK(!std::filesystem::is_directory(status), ErrorCode::configuration,
                "{} {} is a folder; name the YAML file in it", what, path.string());
  const auto size = std::filesystem::file_size(path, error);
  TESSERA_CHECK(error || size <= largest, ErrorCode::configuration,
                "{} {} has {} bytes, more than the {} that it may have", what, path.string(), size,
                largest);
  std::ifstream stream(path, std::ios::binary);
  TESSERA_CHECK(stream.is_open(), ErrorCode::configuration, "{} {} cannot be read: {}", what,
                path.string(), describe_errno("open", errno));
  std::string text;
  char block[4096];
  while (stream.read(block, sizeof block) || stream.gcount() > 0) {
    text.append(block, static_cast<std::size_t>(stream.gcount()));
    TESSERA_CHECK(text.size() <= largest, ErrorCode::configuration,
                  "{} {} has more than the {} bytes that it may have", what, path.string(),
                  largest);
  }
  TESSERA_CHECK(!stream.bad(), ErrorCode::configuration, "{} {} cannot be read", what,
                path.string());
  return text;
}

}  // namespace tessera
