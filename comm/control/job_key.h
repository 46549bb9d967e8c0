// The secret of a job: a process that joins the control plane proves that it knows the secret,
// without sending it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tessera::comm::control {

inline constexpr const char* job_key_variable = "TESSERA_JOB_KEY";
inline constexpr const char* job_key_file_variable = "TESSERA_JOB_KEY_FILE";
// The value of TESSERA_JOB_KEY that declines a key, even over several nodes.
inline constexpr std::string_view no_job_key = "none";

// A number that is used once, from the operating system.
using Nonce = std::array<std::uint8_t, 32>;
Nonce make_nonce();

// HMAC-SHA-256 (libsodium's) under the key.
using Proof = std::array<std::uint8_t, 32>;

class JobKey {
 public:
  JobKey() = default;  // no key
  ~JobKey();           // overwrites it
  JobKey(const JobKey&) = default;
  JobKey(JobKey&&) = default;
  JobKey& operator=(const JobKey&) = default;
  JobKey& operator=(JobKey&&) = default;

  // The user has declined a key.
  static JobKey none();
  // The key of TESSERA_JOB_KEY, else of the file that TESSERA_JOB_KEY_FILE names, else no key.
  // Throws Error(configuration) for a value that cannot be a key, and as from_file().
  static JobKey from_environment();
  // 16 to 1024 characters without spaces. `source` names their origin in errors.
  static JobKey from_text(std::string_view text, std::string_view source);
  // The first line of a file that only its owner can read, who is this user or root; throws
  // Error(configuration) otherwise.
  static JobKey from_file(const std::filesystem::path& path);
  static JobKey made();

  // False: the job has no key and requires no proof.
  [[nodiscard]] bool given() const { return !text_.empty(); }
  // The user has declined a key.
  [[nodiscard]] bool declined() const { return declined_; }
  // For the environment of the job's processes only.
  [[nodiscard]] std::string for_environment() const {
    return given() ? text_ : declined_ ? std::string(no_job_key) : std::string();
  }

  // The proof over the parts in this order, each with its length. All zeros without a key.
  [[nodiscard]] Proof prove(std::initializer_list<std::string_view> parts) const;
  // Compares in constant time.
  [[nodiscard]] bool holds(const Proof& proof, std::initializer_list<std::string_view> parts) const;

 private:
  std::string text_;
  bool declined_ = false;
};

}  // namespace tessera::comm::control
