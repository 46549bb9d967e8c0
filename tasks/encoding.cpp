// Batches of sentences for an encoder, and the resulting rows.
#include "tasks/encoding.h"

#include <unicode/locid.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "engine/autograd.h"
#include "engine/device/queue.h"
#include "engine/device/stream.h"
#include "engine/ops.h"

namespace tessera::tasks {
namespace {

using Sequences = std::vector<std::vector<std::int32_t>>;

// Batches that are tokenised before they are needed.
constexpr std::int64_t batches_ahead = 4;

// A batch that the worker tokenises.
struct Upcoming {
  std::vector<std::size_t> texts;
  std::shared_ptr<Sequences> sequences = std::make_shared<Sequences>();
  Event tokenised;
};

}  // namespace

std::vector<std::int32_t> TextTokens::sequence(std::string_view text) const {
  const std::string with_prompt = prompt.empty() ? std::string() : prompt + std::string(text);
  if (!prompt.empty()) text = with_prompt;
  if (!lower_case) return tokenizer->encode_sequence(text, max_length);
  // As Python's str.lower(): mappings without a language, and sigma by its place in the word.
  const auto length = static_cast<std::int32_t>(text.size());
  std::string lower;
  icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), length))
      .toLower(icu::Locale::getRoot())
      .toUTF8String(lower);
  return tokenizer->encode_sequence(lower, max_length);
}

models::TokenBatch make_token_batch(const Sequences& sequences, std::int32_t padding_id,
                                    Device device) {
  std::size_t longest = 0;
  for (const auto& sequence : sequences) {
    TESSERA_CHECK(!sequence.empty(), ErrorCode::data,
                  "a text without tokens: the encoder needs at least one");
    longest = std::max(longest, sequence.size());
  }
  std::vector<std::int32_t> ids, lengths;
  ids.reserve(longest * sequences.size());
  for (const auto& sequence : sequences) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    ids.insert(ids.end(), longest - sequence.size(), padding_id);
    lengths.push_back(static_cast<std::int32_t>(sequence.size()));
  }
  const auto batch = static_cast<std::int64_t>(sequences.size());
  const DeviceGuard on_host(Device::cpu());
  return {Tensor::from(ids, {batch, static_cast<std::int64_t>(longest)}).to(device),
          Tensor::from(lengths, {batch}).to(device)};
}

std::vector<std::size_t> longest_first(std::span<const std::size_t> lengths) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
  return order;
}

void encode_texts(std::span<const std::string_view> texts, const TextTokens& tokens,
                  const Encode& encode, const EncodingOptions& options,
                  const std::function<void(std::size_t, std::span<const float>)>& take) {
  TESSERA_REQUIRE(options.batch_size > 0, "encode_texts: batches of {}", options.batch_size);
  std::vector<std::size_t> lengths;
  for (const std::string_view text : texts) lengths.push_back(text.size());
  const std::vector<std::size_t> order = longest_first(lengths);
  const auto batch_size = static_cast<std::size_t>(options.batch_size);
  const std::int64_t own = batches_of(static_cast<std::int64_t>(texts.size()), options.batch_size);
  const std::int64_t batches = std::max(own, options.batches);

  // Must outlive the worker, which is destroyed first, also when an exception is thrown.
  std::deque<Upcoming> ahead;
  Stream worker("tokenizer");
  const auto begin_batch = [&](std::int64_t number) {
    Upcoming batch;
    const std::size_t first = static_cast<std::size_t>(number) * batch_size;
    for (std::size_t i = first; i < std::min(order.size(), first + batch_size); ++i) {
      batch.texts.push_back(order[i]);
    }
    batch.tokenised = worker.enqueue([&texts, &tokens, which = batch.texts, out = batch.sequences] {
      for (const std::size_t text : which) {
        out->push_back(tokens.sequence(texts[text]));
      }
      // A rank without texts runs a batch so that the other ranks do not wait.
      if (which.empty()) out->push_back(tokens.sequence("a"));
    });
    ahead.push_back(std::move(batch));
  };

  const NoGradGuard no_grad;
  std::vector<float> rows;
  std::int64_t begun = 0;
  for (std::int64_t number = 0; number < batches; ++number) {
    while (begun < std::min(batches, number + 1 + batches_ahead)) begin_batch(begun++);
    const Upcoming batch = std::move(ahead.front());
    ahead.pop_front();
    batch.tokenised.wait();
    const Tensor embeddings = cast(
        encode(make_token_batch(*batch.sequences, tokens.tokenizer->padding_id(), options.device)),
        float32);
    if (batch.texts.empty()) continue;
    rows.resize(static_cast<std::size_t>(embeddings.elements()));
    current_queue(embeddings.device())
        .copy_to_host(rows.data(), embeddings.data(), embeddings.bytes());
    const auto dimension = static_cast<std::size_t>(embeddings.size(1));
    for (std::size_t i = 0; i < batch.texts.size(); ++i) {
      take(batch.texts[i], std::span<const float>(rows).subspan(i * dimension, dimension));
    }
  }
}

}  // namespace tessera::tasks
