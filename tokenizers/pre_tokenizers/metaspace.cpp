// Metaspace: replaces spaces by a visible character, and adds one at the beginning of the text;
// each word begins with it.
#include "base/error.h"
#include "tokenizers/pipeline/pre_tokenizer.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

enum class PrependScheme : std::uint8_t { first, never, always };

struct MetaspaceSettings {
  std::string replacement;
  PrependScheme prepend;
  bool split;
};

class MetaspaceStage final : public PreTokenizerStage {
 public:
  explicit MetaspaceStage(MetaspaceSettings settings) : settings_(std::move(settings)) {}

  void take(const Piece& piece) override {
    const std::string& mark = settings_.replacement;
    const std::string_view text = piece.text;
    written_.clear();
    const bool prepend = settings_.prepend == PrependScheme::always ||
                         (settings_.prepend == PrependScheme::first && piece.first);
    if (prepend && !text.starts_with(' ') && !text.starts_with(mark)) written_ = mark;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t space = std::min(text.find(' ', at), text.size());
      written_.append(text, at, space - at);
      if (space < text.size()) written_ += mark;
      at = space + 1;
    }
    const std::string_view all = written_;
    if (!settings_.split) {
      give(all, piece.first);
      return;
    }
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t search = begin + (all.substr(begin).starts_with(mark) ? mark.size() : 0);
      const std::size_t end = std::min(all.find(mark, search), all.size());
      give(all.substr(begin, end - begin), piece.first && begin == 0);
      begin = end;
    }
  }

 private:
  MetaspaceSettings settings_;
  std::string written_;
};

PrependScheme prepend_scheme(const nlohmann::json& object, const std::string& source) {
  // Older files have add_prefix_space instead.
  const bool prefix = bool_or(object, "add_prefix_space", true, source);
  const std::string name = string_or(object, "prepend_scheme", prefix ? "always" : "never", source);
  if (name == "first") return PrependScheme::first;
  if (name == "never") return PrependScheme::never;
  if (name == "always") return PrependScheme::always;
  fail(ErrorCode::data, "{}: prepend_scheme '{}' is not supported; there are first, never, always",
       source, shown(name));
}

}  // namespace

MakeStage make_metaspace_stage(const nlohmann::json& object, const std::string& source) {
  const MetaspaceSettings settings{string_or(object, "replacement", "\xE2\x96\x81", source),
                                   prepend_scheme(object, source),
                                   bool_or(object, "split", true, source)};
  TESSERA_CHECK(!settings.replacement.empty() &&
                    character_length(settings.replacement[0]) == settings.replacement.size(),
                ErrorCode::data, "{}: 'replacement' is not one character", source);
  return [settings] { return std::make_unique<MetaspaceStage>(settings); };
}

}  // namespace tessera::tokenizers
