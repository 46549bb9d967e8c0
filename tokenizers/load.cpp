// Finds the file of a tokenizer by its name.
#include "tokenizers/load.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "tokenizers/files/files.h"

namespace tessera::tokenizers {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const Tokenizer> tokenizer_of_file(const fs::path& path) {
  if (path.filename() == "tekken.json") return tokenizer_from_tekken(path);
  if (path.filename() == "vocab.json") return tokenizer_from_merges(path);
  if (path.extension() == ".json") return tokenizer_from_json(path);
  if (path.extension() == ".txt") return tokenizer_from_vocabulary(path);
  if (path.extension() == ".model") return tokenizer_from_sentencepiece(path);
  if (path.extension() == ".tiktoken") return tokenizer_from_tiktoken(path);
  fail(ErrorCode::configuration,
       "tokenizer {}: the name ends in none of .json (tokenizer.json, tekken.json, vocab.json), "
       ".txt "
       "(vocab.txt), .model (SentencePiece) and .tiktoken",
       path.string());
}

// tiktoken's files of a folder, sorted.
std::vector<fs::path> rank_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".tiktoken" || path.filename() == "tiktoken.model") {
      files.push_back(path);
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The most complete file of a folder, or an empty path.
fs::path file_in(const fs::path& folder) {
  std::error_code error;
  for (const char* name : {"tokenizer.json", "vocab.txt", "tokenizer.model", "spiece.model",
                           "sentencepiece.bpe.model"}) {
    if (fs::is_regular_file(folder / name, error)) return folder / name;
  }
  if (fs::is_regular_file(folder / "tekken.json", error)) return folder / "tekken.json";
  const std::vector<fs::path> ranks = rank_files_in(folder);
  // If there are several, none can be chosen.
  if (ranks.size() == 1) return ranks.front();
  if (fs::is_regular_file(folder / "vocab.json", error) &&
      fs::is_regular_file(folder / "merges.txt", error)) {
    return folder / "vocab.json";
  }
  return {};
}

}  // namespace

bool is_tokenizer_folder(const std::string& folder) {
  return !file_in(folder).empty();
}

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& name_or_path) {
  if (name_or_path == "bytes") return make_tokenizer(name_or_path);
  const fs::path path = name_or_path;
  std::error_code error;
  if (fs::is_regular_file(path, error)) return tokenizer_of_file(path);
  TESSERA_CHECK(fs::is_directory(path, error), ErrorCode::configuration,
                "tokenizer {}: neither 'bytes' nor an existing file or folder; name a folder "
                "with a tokenizer.json",
                name_or_path);
  const fs::path file = file_in(path);
  if (!file.empty()) return tokenizer_of_file(file);
  const std::vector<fs::path> ranks = rank_files_in(path);
  TESSERA_CHECK(ranks.empty(), ErrorCode::configuration,
                "tokenizer {}: the folder holds {} files of tiktoken's, such as '{}'; name one of "
                "them",
                name_or_path, ranks.size(), ranks.front().filename().string());
  fail(ErrorCode::configuration,
       "tokenizer {}: the folder holds no tokenizer.json, vocab.txt, tokenizer.model or another of "
       "the files in docs/tokenizers.md; "
       "AutoTokenizer.from_pretrained(..).save_pretrained(..) writes a tokenizer.json",
       name_or_path);
}

}  // namespace tessera::tokenizers
