// The types of decoders.
#include "tokenizers/pipeline/decoder.h"

#include <array>
#include <memory>
#include <utility>

#include "base/error.h"
#include "tokenizers/text/byte_alphabet.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/pattern_field.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

using nlohmann::json;
using Tokens = std::vector<std::string>;

void replace_every(std::string& text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t kept = 0;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, kept)) {
    out.append(text, kept, at - kept);
    out.append(to);
    kept = at + from.size();
  }
  if (kept == 0) return;
  out.append(text, kept);
  text = std::move(out);
}

std::size_t bytes_of(const Tokens& tokens) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

std::string joined(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

DecoderStep byte_level_decoder(const json&, const std::string&) {
  return [](const Tokens& tokens) {
    std::string bytes;
    for (const std::string& token : tokens) bytes += byte_alphabet().read(token).value_or(token);
    std::string copy;
    return Tokens{std::string(as_utf8(bytes, copy))};
  };
}

DecoderStep word_piece_decoder(const json& object, const std::string& source) {
  const std::string prefix = string_or(object, "prefix", "##", source);
  const bool cleanup = bool_or(object, "cleanup", true, source);
  return [prefix, cleanup](Tokens tokens) {
    constexpr std::array<std::pair<const char*, const char*>, 11> tidy = {{{" .", "."},
                                                                           {" ?", "?"},
                                                                           {" !", "!"},
                                                                           {" ,", ","},
                                                                           {" ' ", "'"},
                                                                           {" n't", "n't"},
                                                                           {" 'm", "'m"},
                                                                           {" do not", " don't"},
                                                                           {" 's", "'s"},
                                                                           {" 've", "'ve"},
                                                                           {" 're", "'re"}}};
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0 && token.starts_with(prefix)) {
        token.erase(0, prefix.size());
      } else if (i > 0) {
        token.insert(token.begin(), ' ');
      }
      for (std::size_t k = 0; cleanup && k < tidy.size(); ++k) {
        replace_every(token, tidy[k].first, tidy[k].second);
      }
    }
    return tokens;
  };
}

DecoderStep metaspace_decoder(const json& object, const std::string& source) {
  const std::string mark = string_or(object, "replacement", "\xE2\x96\x81", source);
  const bool prefix = bool_or(object, "add_prefix_space", true, source) &&
                      string_or(object, "prepend_scheme", "always", source) != "never";
  TESSERA_CHECK(!mark.empty(), ErrorCode::data, "{}: 'replacement' is empty", source);
  return [mark, prefix](Tokens tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      replace_every(tokens[i], mark, i == 0 && prefix ? "" : " ");
    }
    return tokens;
  };
}

DecoderStep bpe_decoder(const json& object, const std::string& source) {
  const std::string suffix = string_or(object, "suffix", "</w>", source);
  return [suffix](Tokens tokens) {
    for (std::size_t i = 0; !suffix.empty() && i < tokens.size(); ++i) {
      replace_every(tokens[i], suffix, i + 1 < tokens.size() ? " " : "");
    }
    return tokens;
  };
}

// The byte of <0xNN>; -1: another token.
int fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : {token[3], token[4]}) {
    const bool digit = c >= '0' && c <= '9';
    const char small = static_cast<char>(c | 0x20);
    if (!digit && !(small >= 'a' && small <= 'f')) return -1;
    byte = byte * 16 + (digit ? c - '0' : small - 'a' + 10);
  }
  return byte;
}

DecoderStep byte_fallback_decoder(const json&, const std::string&) {
  return [](Tokens tokens) {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      std::string copy;
      if (as_utf8(bytes, copy).data() == bytes.data()) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = fallback_byte(token); byte >= 0) {
        bytes += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    return out;
  };
}

DecoderStep fuse_decoder(const json&, const std::string&) {
  return [](const Tokens& tokens) { return Tokens{joined(tokens)}; };
}

DecoderStep strip_decoder(const json& object, const std::string& source) {
  const std::string content = string_of(object, "content", source);
  const std::int64_t start = integer_or(object, "start", 0, 0, 1 << 30, source);
  const std::int64_t stop = integer_or(object, "stop", 0, 0, 1 << 30, source);
  TESSERA_CHECK(!content.empty(), ErrorCode::data, "{}: 'content' is empty", source);
  return [content, start, stop](Tokens tokens) {
    for (std::string& token : tokens) {
      for (std::int64_t i = 0; i < start && token.starts_with(content); ++i) {
        token.erase(0, content.size());
      }
      for (std::int64_t i = 0; i < stop && token.ends_with(content); ++i) {
        token.erase(token.size() - content.size());
      }
    }
    return tokens;
  };
}

DecoderStep replace_decoder(const json& object, const std::string& source) {
  const auto pattern = std::make_shared<const PatternField>(pattern_field(object, source));
  const std::string content = string_of(object, "content", source);
  return [pattern, content](Tokens tokens) {
    std::string buffer;
    for (std::string& token : tokens) {
      token = std::string(pattern->replace_all(token, content, buffer));
    }
    return tokens;
  };
}

struct DecoderType {
  const char* name;
  DecoderStep (*make)(const json&, const std::string&);
};

constexpr std::array<DecoderType, 8> decoder_types = {{
    {"ByteLevel", byte_level_decoder},
    {"WordPiece", word_piece_decoder},
    {"Metaspace", metaspace_decoder},
    {"BPEDecoder", bpe_decoder},
    {"ByteFallback", byte_fallback_decoder},
    {"Fuse", fuse_decoder},
    {"Strip", strip_decoder},
    {"Replace", replace_decoder},
}};

void add_decoder(const json& object, const std::string& source, std::vector<DecoderStep>& steps) {
  const std::string type = type_of(object, source);
  if (type == "Sequence") {
    const json& listed = member(object, "decoders", source);
    TESSERA_CHECK(listed.is_array(), ErrorCode::data, "{}: 'decoders' is not a list", source);
    for (std::size_t i = 0; i < listed.size(); ++i) {
      add_decoder(listed[i], fmt::format("{}[{}]", source, i), steps);
    }
    return;
  }
  std::string names = "Sequence";
  for (const DecoderType& known : decoder_types) {
    if (type == known.name) {
      steps.push_back(known.make(object, source));
      return;
    }
    names += fmt::format(", {}", known.name);
  }
  fail(ErrorCode::data, "{}: decoder type '{}' is not supported; there are {}", source, shown(type),
       names);
}

}  // namespace

Decoder::Decoder(const json& object, const std::string& source) {
  add_decoder(object, source, steps_);
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  if (steps_.empty()) {
    std::string text;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) text += ' ';
      text += tokens[i];
    }
    return text;
  }
  const std::size_t longest = 256 * bytes_of(tokens) + 65536;
  for (const DecoderStep& step : steps_) {
    tokens = step(std::move(tokens));
    TESSERA_CHECK(bytes_of(tokens) <= longest, ErrorCode::data,
                  "the tokenizer's decoders make a text more than 256 times as long");
  }
  return joined(tokens);
}

}  // namespace tessera::tokenizers
