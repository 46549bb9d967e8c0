// Replace: replaces every match of a text or of a regular expression by another text.
#include "base/error.h"
#include "tokenizers/pipeline/normalizer.h"
#include "tokenizers/text/json_fields.h"
#include "tokenizers/text/pattern.h"
#include "tokenizers/text/pattern_field.h"

namespace tessera::tokenizers {
namespace {

class Replacement final : public Normalizer {
 public:
  Replacement(const nlohmann::json& object, const std::string& source)
      : pattern_(pattern_field(object, source)), content_(string_of(object, "content", source)) {}

  [[nodiscard]] std::string_view apply(std::string_view text, std::string& buffer) const override {
    return pattern_.replace_all(text, content_, buffer);
  }

 private:
  PatternField pattern_;
  std::string content_;
};

}  // namespace

std::unique_ptr<Normalizer> make_replacement(const nlohmann::json& object,
                                             const std::string& source) {
  return std::make_unique<Replacement>(object, source);
}

}  // namespace tessera::tokenizers
