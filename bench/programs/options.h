// The command line of a benchmark program. The program lists its options; --help prints the list,
// and any other word is refused in one line, with exit code 2.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::bench {

struct Option {
  std::string name;  // with dashes: an option with a value; without: a positional argument
  std::string meaning;
  std::function<bool(const std::string&)> read;  // false if the value is not valid
  bool required = false;
};

// A whole or real number of at least `least`.
template <typename T>
Option number(std::string name, T& value, T least, std::string meaning) {
  meaning += fmt::format(" ({})", value);
  return {std::move(name), std::move(meaning), [&value, least](const std::string& text) {
            T read{};
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read);
            if (error != std::errc() || end != text.data() + text.size()) return false;
            if (!(read >= least)) return false;
            value = read;
            return true;
          }};
}

inline Option text(std::string name, std::string& value, std::string meaning) {
  if (!value.empty()) meaning += fmt::format(" ({})", value);
  return {std::move(name), std::move(meaning), [&value](const std::string& given) {
            value = given;
            return true;
          }};
}

inline Option required(Option option) {
  option.required = true;
  return option;
}

namespace options_detail {

inline std::string usage(std::string_view program, std::string_view about,
                         const std::vector<Option>& options) {
  std::string line = fmt::format("usage: {}", program), list;
  for (const Option& option : options) {
    if (!option.name.starts_with('-')) {
      line += option.required ? " " + option.name : fmt::format(" [{}]", option.name);
    }
    list += fmt::format("  {:<14} {}\n", option.name, option.meaning);
  }
  return fmt::format("{} [OPTION VALUE]...\n\n{}\n\n{}  {:<14} print this\n", line, about, list,
                     "--help");
}

[[noreturn]] inline void refuse(std::string_view program, const std::string& why) {
  fmt::print(stderr, "{}: {}; {} --help lists the options\n", program, why, program);
  std::exit(2);
}

}  // namespace options_detail

// Reads the whole command line, or ends the program. An argument that ends in "..." takes all
// remaining words.
inline void read_options(int argc, char** argv, std::string_view about,
                         const std::vector<Option>& options) {
  const std::string path = argv[0], program = path.substr(path.rfind('/') + 1);
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (const std::string& word : words) {
    if (word != "--help" && word != "-h") continue;
    fmt::print("{}", options_detail::usage(program, about, options));
    std::exit(0);
  }
  std::vector<const Option*> places;
  for (const Option& option : options) {
    if (!option.name.starts_with('-')) places.push_back(&option);
  }
  std::vector<const Option*> read;
  std::size_t taken = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const Option* option = nullptr;
    if (words[i].starts_with('-')) {
      for (const Option& known : options) option = known.name == words[i] ? &known : option;
      if (option == nullptr) {
        options_detail::refuse(program, fmt::format("unknown option {}", words[i]));
      }
      if (++i == words.size()) {
        options_detail::refuse(program, fmt::format("{} needs a value", option->name));
      }
    } else if (taken < places.size()) {
      option = places[taken];
      if (!option->name.ends_with("...")) ++taken;
    } else {
      options_detail::refuse(program, fmt::format("unexpected argument '{}'", words[i]));
    }
    if (!option->read(words[i])) {
      options_detail::refuse(program, fmt::format("{} cannot be '{}'", option->name, words[i]));
    }
    read.push_back(option);
  }
  for (const Option* option : places) {
    if (option->required && std::find(read.begin(), read.end(), option) == read.end()) {
      options_detail::refuse(program, fmt::format("{} is missing", option->name));
    }
  }
}

}  // namespace tessera::bench
