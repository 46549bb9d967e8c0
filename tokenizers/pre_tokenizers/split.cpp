// Split: cuts at the matches of a pattern.
#include "base/error.h"
#include "tokenizers/pipeline/pre_tokenizer.h"
#include "tokenizers/pre_tokenizers/delimiters.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/pattern_field.h"
#include "tokenizers/text/unicode.h"

namespace tessera::tokenizers {
namespace {

struct SplitSettings {
  PatternField pattern;
  DelimiterBehavior behavior;
  bool invert;
};

class SplitStage final : public PreTokenizerStage {
 public:
  explicit SplitStage(std::shared_ptr<const SplitSettings> settings)
      : settings_(std::move(settings)), search_(settings_->pattern) {}

  void take(const Piece& piece) override {
    const std::string_view text = piece.text;
    DelimiterMerger merger(settings_->behavior, [&](std::size_t begin, std::size_t end) {
      give(text.substr(begin, end - begin), piece.first && begin == 0);
    });
    Pattern::Matcher::Match match;
    std::size_t done = 0;
    for (std::size_t from = 0; from <= text.size() && search_.find(text, from, match);) {
      if (done < match.begin) merger.part(done, match.begin, settings_->invert);
      if (match.begin < match.end) {
        merger.part(match.begin, match.end, !settings_->invert);
        from = match.end;
      } else {
        // Between two parts, an empty delimiter keeps them apart.
        if (settings_->behavior == DelimiterBehavior::contiguous) {
          merger.part(match.begin, match.end, !settings_->invert);
        }
        from = match.end + (match.end < text.size() ? character_length(text[match.end]) : 1);
      }
      done = match.end;
    }
    if (done < text.size()) merger.part(done, text.size(), settings_->invert);
    merger.finish();
  }

 private:
  std::shared_ptr<const SplitSettings> settings_;
  PatternField::Search search_;
};

}  // namespace

DelimiterBehavior delimiter_behavior(const nlohmann::json& object, const char* otherwise,
                                     const std::string& source) {
  const std::string name = string_or(object, "behavior", otherwise, source);
  if (name == "Removed") return DelimiterBehavior::removed;
  if (name == "Isolated") return DelimiterBehavior::isolated;
  if (name == "MergedWithPrevious") return DelimiterBehavior::merged_with_previous;
  if (name == "MergedWithNext") return DelimiterBehavior::merged_with_next;
  if (name == "Contiguous") return DelimiterBehavior::contiguous;
  fail(ErrorCode::data,
       "{}: behavior '{}' is not supported; there are Removed, Isolated, MergedWithPrevious, "
       "MergedWithNext and Contiguous",
       source, shown(name));
}

MakeStage make_split_stage(const nlohmann::json& object, const std::string& source) {
  const auto settings = std::make_shared<const SplitSettings>(
      SplitSettings{pattern_field(object, source), delimiter_behavior(object, "Isolated", source),
                    bool_or(object, "invert", false, source)});
  return [settings] { return std::make_unique<SplitStage>(settings); };
}

}  // namespace tessera::tokenizers
