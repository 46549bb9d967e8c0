// Python pickles as data: a reader that builds plain values and executes nothing, and a writer of
// the few opcodes that torch.save files and DCP's .metadata are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::checkpoint::formats {

enum class PickleKind : std::uint8_t {
  none,
  boolean,
  integer,
  big_integer,  // more than 64 bits; its value is not kept
  real,
  text,
  bytes,
  list,
  tuple,
  dict,  // OrderedDict, defaultdict and Counter as well; their BUILD state is dropped
  set,
  global,      // a name of the whitelist: "module.name"
  object,      // a global called with arguments, and the state that BUILD gave it
  persistent,  // an object outside of the pickle, by its id: a tensor's storage
};
std::string_view name_of(PickleKind kind);

class Pickle;

// A value of a pickle, which must outlive it. Values may be shared and may contain themselves: code
// that walks them must bound the depth and the number of visits.
class PickleValue {
 public:
  PickleValue(const Pickle& pickle, std::uint32_t id) : pickle_(&pickle), id_(id) {}
  [[nodiscard]] PickleKind kind() const;
  [[nodiscard]] bool is(PickleKind wanted) const { return kind() == wanted; }
  [[nodiscard]] bool is_global(std::string_view name) const;
  [[nodiscard]] bool is_object_of(std::string_view name) const;
  [[nodiscard]] std::uint32_t id() const { return id_; }
  [[nodiscard]] const std::string& source() const;

  // Error(checkpoint) that names the source when the value is of another kind.
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::int64_t integer() const;
  [[nodiscard]] double number() const;  // of an integer too
  [[nodiscard]] const std::string& text() const;
  [[nodiscard]] const std::string& global() const;

  // The values of a list, tuple or set; keys and values of a dict in turn; the global, the
  // arguments (a tuple) and, if present, the state of an object; the id of a persistent.
  [[nodiscard]] std::size_t size() const;  // of a dict: the number of keys
  [[nodiscard]] PickleValue at(std::size_t i) const;
  [[nodiscard]] PickleValue key(std::size_t i) const;
  [[nodiscard]] PickleValue value(std::size_t i) const;
  // For a dict with few keys: the last value of this key, as in Python.
  [[nodiscard]] std::optional<PickleValue> find(std::string_view text_key) const;
  [[nodiscard]] PickleValue require(std::string_view text_key) const;
  [[nodiscard]] PickleValue argument(std::size_t i) const;  // of an object
  [[nodiscard]] std::size_t argument_count() const;
  [[nodiscard]] std::optional<PickleValue> state() const;

 private:
  [[nodiscard]] const std::vector<std::uint32_t>& items() const;
  void expect(PickleKind wanted) const;
  const Pickle* pickle_;
  std::uint32_t id_;
};

// The globals that a pickle may name. Nothing is ever imported or called: the list exists so that a
// file with other globals is refused with their names.
struct PickleRules {
  bool (*allows)(std::string_view global) = nullptr;
  const char* holds = "";   // "a torch.save file of tensors": the allowed contents
  const char* advice = "";  // what to do if the file has other contents
  // The advice about files with this global, or null for the general one. The bytes of the pickle
  // may name other globals behind it.
  const char* (*advice_about)(std::string_view global, std::string_view pickle) = nullptr;
};

class Pickle {
 public:
  // `bytes` is one pickle of protocol 2 to 5 with nothing behind it. Throws Error(checkpoint) that
  // begins with `source`.
  Pickle(std::string_view bytes, std::string source, const PickleRules& rules);
  [[nodiscard]] PickleValue root() const { return {*this, root_}; }
  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] std::size_t values() const { return nodes_.size(); }  // of all kinds

 private:
  friend class PickleValue;
  friend class PickleMachine;
  struct Node {
    PickleKind kind = PickleKind::none;
    std::uint32_t index = 0;  // into texts_ or items_
    union {
      std::int64_t integer = 0;
      double real;
    };
  };
  std::string source_;
  std::vector<Node> nodes_;
  std::vector<std::string> texts_;
  std::vector<std::vector<std::uint32_t>> items_;
  std::uint32_t root_ = 0;
};

inline constexpr std::size_t pickle_bytes_limit = std::size_t{1} << 29;

// Text of a file in quotes, shortened, with all characters escaped that a terminal could interpret.
std::string shown(std::string_view text);

// Writes a pickle of protocol 2, which every Python reads. The caller opens and closes containers;
// the methods are named by what Python would build.
class PickleWriter {
 public:
  PickleWriter();
  PickleWriter& none();
  PickleWriter& boolean(bool value);
  PickleWriter& integer(std::int64_t value);
  PickleWriter& real(double value);
  PickleWriter& text(std::string_view value);  // repeated ones are written once
  PickleWriter& global(const char* module, const char* name);
  PickleWriter& empty_list();
  PickleWriter& empty_tuple();
  PickleWriter& empty_dict();
  PickleWriter& mark();
  PickleWriter& tuple();       // of what follows the mark
  PickleWriter& append();      // the value on top to the list below it
  PickleWriter& set_item();    // key and value on top into the dict below
  PickleWriter& reduce();      // calls the global below with the tuple on top
  PickleWriter& new_object();  // the same by __new__
  PickleWriter& build();       // gives the state on top to the object below
  PickleWriter& persistent();
  PickleWriter& tuple_of(const std::vector<std::int64_t>& values);
  // Memoizes the value on top; `get` pushes it again.
  std::uint32_t put();
  PickleWriter& get(std::uint32_t memo);
  std::string finish();

 private:
  void byte(int value) { out_ += static_cast<char>(value); }
  void little_endian(std::uint64_t value, int bytes);
  std::string out_;
  std::uint32_t memo_ = 0;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::unordered_map<std::string, std::uint32_t> globals_;
};

}  // namespace tessera::checkpoint::formats
