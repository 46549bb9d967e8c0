// Encodes texts in groups, in their order.
#include "tasks/columnar/text_appender.h"

#include <optional>
#include <utility>

#include "base/error.h"

namespace tessera::tasks {
namespace {

constexpr std::size_t group_bytes = std::size_t{1} << 20;

}  // namespace

TextAppender::TextAppender(const Tokenizer& tokenizer, int workers, TokenStreamWriter& writer)
    : tokenizer_(tokenizer), workers_(workers), writer_(writer) {
  TESSERA_REQUIRE(workers > 0, "{} workers", workers);
}

void TextAppender::add(std::string_view text) {
  add(text, false);
}

void TextAppender::add_whole(std::string_view text) {
  add(text, true);
}

void TextAppender::add(std::string_view text, bool whole) {
  added_.bytes += text;
  if (!whole && !tokenizer_.end_of_text()) added_.bytes += '\n';
  added_.ends.push_back(added_.bytes.size());
  added_.whole.push_back(whole);
  if (added_.bytes.size() >= group_bytes) encode_added();
}

void TextAppender::finish() {
  encode_added();
  while (!running_.empty()) append_first();
}

std::vector<std::int32_t> TextAppender::encode(const Texts& texts) const {
  const std::optional<std::int32_t> end_of_text = tokenizer_.end_of_text();
  std::vector<std::int32_t> ids;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < texts.ends.size(); ++i) {
    const std::size_t end = texts.ends[i];
    const auto text = std::string_view(texts.bytes).substr(begin, end - begin);
    begin = end;
    const std::vector<std::int32_t> more = tokenizer_.encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
    if (end_of_text && !texts.whole[i]) ids.push_back(*end_of_text);
  }
  return ids;
}

void TextAppender::encode_added() {
  Texts texts = std::exchange(added_, {});
  if (workers_ == 1) {
    writer_.append(encode(texts));
    return;
  }
  if (std::cmp_greater_equal(running_.size(), workers_)) append_first();
  running_.push_back(
      std::async(std::launch::async, [this, texts = std::move(texts)] { return encode(texts); }));
}

void TextAppender::append_first() {
  const std::vector<std::int32_t> ids = running_.front().get();
  running_.pop_front();
  writer_.append(ids);
}

}  // namespace tessera::tasks
