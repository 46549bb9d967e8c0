// Patterns, folders, and the first bytes of files.
#include "tasks/columnar/table_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "engine/data/compression/decompressor.h"
#include "engine/data/text_reader.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;

std::optional<TableFileKind> kind_of_beginning(std::string_view begin) {
  const std::optional<Container> container = container_of(begin);
  if (container == Container::parquet) return TableFileKind::parquet;
  if (container == Container::arrow) return TableFileKind::arrow;
  return container == Container::tar ? std::optional(TableFileKind::tar) : std::nullopt;
}

std::optional<TableFileKind> kind_of_name(const fs::path& path) {
  const std::string ending = path.extension().string();
  if (ending == ".parquet" || ending == ".pq") return TableFileKind::parquet;
  if (ending == ".tar") return TableFileKind::tar;  // old ones have no mark
  const bool arrow =
      ending == ".arrow" || ending == ".arrows" || ending == ".feather" || ending == ".ipc";
  return arrow ? std::optional(TableFileKind::arrow) : std::nullopt;
}

// The first bytes of a file, decompressed. None if it is not regular, or cannot be read.
// `passes_over`: none for a compression that is not read or is damaged, too.
std::optional<std::string> beginning_of(const std::string& path, bool passes_over,
                                        bool& compressed) {
  std::error_code unknown;
  if (!fs::is_regular_file(path, unknown) || ::access(path.c_str(), R_OK) != 0) return std::nullopt;
  constexpr std::int64_t wanted = 512;
  try {
    TextReader reader(path);
    std::string begin;
    while (std::ssize(begin) < wanted && reader.append(begin, wanted)) {
    }
    compressed = reader.decompresses();
    return begin;
  } catch (const Error&) {
    if (!passes_over) throw;
    return std::nullopt;
  }
}

// By the first bytes of what is in it. None for other files, and for those that cannot be read.
// Parquet and Arrow compress by themselves, and a compressed one is refused.
std::optional<TableFileKind> kind_of_file(const std::string& path, bool in_folder) {
  const auto named = kind_of_name(name_without_compression(path));
  bool compressed = false;
  const auto begin = beginning_of(path, in_folder && !named, compressed);
  if (!begin) return std::nullopt;
  auto kind = kind_of_beginning(*begin);
  if (!kind && named == TableFileKind::tar) kind = named;
  const bool container = kind && *kind != TableFileKind::tar;
  TESSERA_CHECK(!container || !compressed, ErrorCode::data,
                "data file {} is {} inside a compression; decompress it", path,
                kind == TableFileKind::parquet ? "Parquet" : "Arrow");
  return kind;
}

// "a%20b" as Hive and Spark escape values of folders.
std::string unescaped(std::string_view text) {
  const auto digit = [](char c) {
    constexpr std::string_view digits = "0123456789abcdef";
    return digits.find(static_cast<char>(c | 0x20));
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) < 16 && digit(text[i + 2]) < 16;
    if (escape) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

TableFile table_file(const std::string& path, TableFileKind kind) {
  TableFile file{path, kind, {}};
  for (const fs::path& part : fs::path(path).parent_path()) {
    const std::string name = part.string();
    const std::size_t equals = name.find('=');
    if (equals == 0 || equals == std::string::npos) continue;
    file.partition.emplace_back(unescaped(std::string_view(name).substr(0, equals)),
                                unescaped(std::string_view(name).substr(equals + 1)));
  }
  return file;
}

// The files of a folder that `Dataset.save_to_disk` of Hugging Face's datasets wrote. It may hold
// other Arrow files as well, its caches.
std::optional<std::vector<std::string>> files_of_dataset(const fs::path& folder) {
  std::ifstream state(folder / "state.json");
  if (!state.is_open()) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(state, nullptr, false);
  if (!json.is_object() || !json.contains("_data_files")) return std::nullopt;
  // Versions of datasets before 2.0 kept a selection or an order of the rows beside them.
  TESSERA_CHECK(!json.contains("_indices_files") || json["_indices_files"].empty(), ErrorCode::data,
                "data folder {}: its state.json has _indices_files, which choose and order the "
                "rows and are not read; in Python: datasets.load_from_disk(FOLDER)"
                ".flatten_indices().save_to_disk(NEW_FOLDER)",
                folder.string());
  std::vector<std::string> files;
  for (const nlohmann::json& one : json["_data_files"]) {
    const nlohmann::json name =
        one.is_object() ? one.value("filename", nlohmann::json()) : nlohmann::json();
    const bool plain = name.is_string() && name.get<std::string>().find('/') == std::string::npos;
    TESSERA_CHECK(plain, ErrorCode::data, "data folder {}: its state.json is damaged",
                  folder.string());
    files.push_back((folder / name.get<std::string>()).string());
  }
  return files;
}

void check_folder(const fs::path& folder) {
  std::error_code unknown;
  TESSERA_CHECK(!fs::exists(folder / "_temporary", unknown), ErrorCode::data,
                "data folder {}: the job that writes it has not finished, or has failed: it holds "
                "_temporary; wait for its _SUCCESS, or remove _temporary",
                folder.string());
  std::ifstream splits(folder / "dataset_dict.json");
  if (!splits.is_open()) return;
  const nlohmann::json json = nlohmann::json::parse(splits, nullptr, false);
  std::vector<std::string> names;
  if (json.is_object() && json.contains("splits") && json["splits"].is_array()) {
    for (const nlohmann::json& one : json["splits"]) {
      if (one.is_string()) names.push_back((folder / one.get<std::string>()).string());
    }
  }
  fail(ErrorCode::data, "data folder {} holds several splits; name one of them: {}",
       folder.string(), fmt::join(names, ", "));
}

// None for a file of another kind.
std::optional<TableFile> recognise_table(const std::string& path, bool in_folder) {
  const auto kind = kind_of_file(path, in_folder);
  const auto named = kind_of_name(name_without_compression(path));
  TESSERA_CHECK(kind || !named || ::access(path.c_str(), R_OK) == 0, ErrorCode::data,
                "data file {} cannot be opened: {}", path, describe_errno("access", errno));
  TESSERA_CHECK(kind || !named, ErrorCode::data,
                "data file {} does not begin as the {} file that its name says; it is "
                "damaged, or not a file",
                path,
                named == TableFileKind::parquet ? "Parquet"
                : named == TableFileKind::arrow ? "Arrow"
                                                : "tar");
  return kind ? std::optional(table_file(path, *kind)) : std::nullopt;
}

// A file and the text by which the files of a folder are sorted.
using SortedFile = std::pair<std::string, TableFile>;

void collect_folder(const fs::path& folder, std::vector<SortedFile>& files) {
  check_folder(folder);
  if (const auto listed = files_of_dataset(folder)) {
    // One text for all of them: a stable sort keeps their order.
    for (const std::string& path : *listed) {
      if (auto file = recognise_table(path, true))
        files.emplace_back(folder / "", std::move(*file));
    }
    return;
  }
  std::vector<std::string> names;
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem); !problem && entry != fs::directory_iterator();
       entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') || name.starts_with('_')) continue;
    names.push_back(entry->path().string());
  }
  TESSERA_CHECK(!problem, ErrorCode::data, "data folder {} cannot be read: {}", folder.string(),
                problem.message());
  for (const std::string& name : names) {
    const fs::file_type type = fs::status(name, problem).type();
    TESSERA_CHECK(type != fs::file_type::none, ErrorCode::data, "data file {} cannot be read: {}",
                  name, problem.message());
    if (type == fs::file_type::directory) {
      collect_folder(name, files);
    } else if (auto file = recognise_table(name, true)) {
      files.emplace_back(name, std::move(*file));
    }
  }
}

std::vector<TableFile> files_of_folder(const fs::path& folder) {
  std::vector<SortedFile> sorted;
  collect_folder(folder, sorted);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<TableFile> files;
  for (auto& [text, file] : sorted) files.push_back(std::move(file));
  return files;
}

// Derived files, and marks like _SUCCESS, begin with an underscore. A pattern means them only if it
// begins so itself.
bool is_passed_over(const fs::path& match, const fs::path& pattern) {
  return match.filename().string().starts_with('_') &&
         !pattern.filename().string().starts_with('_');
}

}  // namespace

std::vector<std::string> expand_files(const std::vector<std::string>& files) {
  std::vector<std::string> paths;
  for (const std::string& file : files) {
    if (file.find_first_of("*?[") == std::string::npos || ::access(file.c_str(), F_OK) == 0) {
      paths.push_back(file);
      continue;
    }
    glob_t found{};
    int result = ::glob(file.c_str(), GLOB_ERR, nullptr, &found);
    const std::size_t before = paths.size();
    for (std::size_t i = 0; result == 0 && i < found.gl_pathc; ++i) {
      if (!is_passed_over(found.gl_pathv[i], file)) paths.emplace_back(found.gl_pathv[i]);
    }
    ::globfree(&found);
    if (result == 0 && paths.size() == before) result = GLOB_NOMATCH;
    TESSERA_CHECK(result == 0, ErrorCode::data, "data files {}: {}", file,
                  result == GLOB_NOMATCH ? "no file has such a name" : "the folder cannot be read");
  }
  return paths;
}

std::optional<std::vector<TableFile>> find_table_files(const std::vector<std::string>& names) {
  std::vector<TableFile> files;
  std::string other;
  bool any = false;
  for (const std::string& path : expand_files(names)) {
    std::error_code unknown;
    if (fs::is_directory(path, unknown)) {
      any = true;
      std::vector<TableFile> inside = files_of_folder(fs::path(path).lexically_normal());
      TESSERA_CHECK(!inside.empty(), ErrorCode::data,
                    "data folder {} has no Parquet, Arrow or tar file; name text files by a "
                    "pattern like {}",
                    path, (fs::path(path) / "*.txt").string());
      std::move(inside.begin(), inside.end(), std::back_inserter(files));
    } else if (auto file = recognise_table(path, false)) {
      files.push_back(std::move(*file));
    } else if (other.empty()) {
      other = path;
    }
  }
  if (!any && files.empty()) return std::nullopt;
  TESSERA_CHECK(other.empty(), ErrorCode::data,
                "data file {} is neither Parquet nor Arrow nor tar, and other files of this data "
                "set are; give it as a data set of its own",
                other);
  const auto in_other_form = std::find_if(files.begin(), files.end(), [&](const TableFile& one) {
    return has_json_rows(one.kind) != has_json_rows(files.front().kind);
  });
  TESSERA_CHECK(in_other_form == files.end(), ErrorCode::data,
                "data files {} and {}: one is a tar archive and one is not; give them as data sets "
                "of their own",
                files.front().path, in_other_form->path);
  return files;
}

std::vector<TableFile> json_lines(const std::vector<std::string>& paths) {
  std::vector<TableFile> files;
  for (const std::string& path : paths) files.push_back({path, TableFileKind::json_lines, {}});
  return files;
}

std::optional<std::vector<TableFile>> find_json_lines(const std::vector<std::string>& paths) {
  const bool named = std::all_of(paths.begin(), paths.end(), [](const std::string& name) {
    const std::string path = name_without_compression(name);
    return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json");
  });
  return named ? std::optional(json_lines(paths)) : std::nullopt;
}

}  // namespace tessera::tasks
