// Files and folders for checkpoints: whole reads and writes at offsets, errors of fsync kept, and
// every system call behind an interface, so that tests can make any of them fail, fall short or end
// the process.
#pragma once

#include <sys/statvfs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// The calls that touch the disk, with POSIX results: -1 and errno on failure.
class SystemCalls {
 public:
  virtual ~SystemCalls() = default;
  virtual int open(const char* path, int flags, mode_t mode);
  virtual ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset);
  virtual ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset);
  virtual int ftruncate(int fd, off_t bytes);
  virtual int fallocate(int fd, off_t bytes);  // from the file's first byte on
  virtual int fsync(int fd);
  // sync_file_range
  virtual int sync_range(int fd, off_t offset, off_t bytes, unsigned flags);
  virtual int close(int fd);
  virtual int flock(int fd, int operation);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int rename(const char* from, const char* to);
  virtual int exchange(const char* first, const char* second);  // swaps two names in one step
  // For a name in an open folder.
  virtual int openat(int folder, const char* name, int flags);
  virtual int unlinkat(int folder, const char* name, int flags);
  virtual int statvfs(const char* path, struct statvfs* result);
};

// The calling thread's: those of the operating system unless a ScopedSystemCalls replaces them.
SystemCalls& system_calls();

// Replaces the calling thread's system calls while it lives.
class ScopedSystemCalls {
 public:
  explicit ScopedSystemCalls(SystemCalls& calls);
  ~ScopedSystemCalls();
  ScopedSystemCalls(const ScopedSystemCalls&) = delete;
  ScopedSystemCalls& operator=(const ScopedSystemCalls&) = delete;

 private:
  SystemCalls* previous_;
};

// An open regular file. Every failure is a SystemFailure (checkpoint/io/failure.h) with the path,
// the offset and errno. A file to read that is missing or too short is damage, a plain
// Error(checkpoint).
class File {
 public:
  static constexpr mode_t default_mode = 0666;

  static File open_for_reading(const std::filesystem::path& path);
  static File open_for_writing(const std::filesystem::path& path);  // it exists
  // It does not exist. Has no permission for others that `mode` or the umask lacks.
  static File create(const std::filesystem::path& path, mode_t mode = default_mode);
  static File create_or_truncate(const std::filesystem::path& path);  // never through a link

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  // All bytes or an Error; an Error past the end says that the file is truncated.
  void read_at(std::uint64_t offset, void* data, std::size_t bytes) const;
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  // Reserves the space if the file system can.
  void resize(std::uint64_t bytes);
  // Starts writing these bytes to disk so that sync() has less to do. A hint: does not make them
  // durable, and cannot fail.
  void start_writing(std::uint64_t offset, std::uint64_t bytes) noexcept;
  // Returns when the contents are durable. A failure is final: the kernel may have dropped the
  // pages it could not write, so a second fsync would succeed wrongly.
  void sync();
  // Starts writing the range to disk, or waits until it is written, so that sync() has little left
  // to do. Guarantees nothing; has no effect if the file system does not support it.
  void begin_writeback(std::uint64_t offset, std::uint64_t bytes);
  void await_writeback(std::uint64_t offset, std::uint64_t bytes);
  // Closes the file and reports errors, which the destructor cannot.
  void close();
  enum class Lock : std::uint8_t { taken, held, unsupported };
  // Takes an exclusive lock that ends with the file. Held: by another process. Unsupported: the
  // file system has no flock.
  Lock try_lock();

  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] mode_t mode() const;  // the permissions
  // The path of the open file, without links.
  [[nodiscard]] std::filesystem::path real_path() const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  File(std::filesystem::path path, int flags, mode_t mode = default_mode);
  void require_regular() const;
  void sync_range(std::uint64_t offset, std::uint64_t bytes, unsigned flags);

  std::filesystem::path path_;
  int fd_ = -1;
};

// An open folder. Work through its descriptor stays in this folder, whatever has its name
// meanwhile.
class OpenFolder {
 public:
  explicit OpenFolder(const std::filesystem::path& folder);
  // A folder in `parent`. A link in its place is refused.
  OpenFolder(const OpenFolder& parent, const std::string& name);
  ~OpenFolder();
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // The names in it, sorted.
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// The path of an open file or folder, without links.
std::filesystem::path path_of_descriptor(int fd);

// Makes the names in a folder durable.
void sync_folder(const std::filesystem::path& folder);
// Creates a folder and the missing ones above it, durably.
void create_folders(const std::filesystem::path& folder);
void create_folder(const std::filesystem::path& folder);
void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
// Puts `fresh` in the place of `old` and returns the old one's new place: the fresh one's name if
// the file system exchanges names atomically; otherwise `aside`, by two renames, between which
// nothing is at `old`. If it throws, nothing has moved.
std::filesystem::path exchange_folders(const std::filesystem::path& fresh,
                                       const std::filesystem::path& old,
                                       const std::filesystem::path& aside);
// The names in a folder, sorted.
std::vector<std::string> names_in_folder(const std::filesystem::path& folder);
// True if the path exists; SystemFailure if this cannot be determined.
bool path_exists(const std::filesystem::path& path);
// Writes a new file with these contents, durable.
void write_file(const std::filesystem::path& path, std::string_view contents,
                mode_t mode = File::default_mode);
// Writes a temporary file and renames it over `path`, durable; readers see the old or the new
// contents.
void replace_file(const std::filesystem::path& path, std::string_view contents);
// Reads a whole small file; refuses a larger one.
std::string read_file(const std::filesystem::path& path, std::uint64_t limit);
std::string read_whole(const File& file, std::uint64_t limit);
// Refuses an open file of a model's folder, which may come from somebody else, that a link brought
// in from outside the folder. Hugging Face's cache is understood: files of snapshots/<revision>/
// are links into blobs/ beside snapshots/.
void require_member(const std::filesystem::path& folder, const File& file);
// Opens a file of such a folder.
File open_member(const std::filesystem::path& folder, const std::string& name);
// SystemFailure with errno if the process cannot make a file in the folder (a read-only file
// system, no permission). Leaves nothing behind.
void check_writable(const std::filesystem::path& folder);
// Bytes that an unprivileged process may still write to the folder's file system.
std::uint64_t free_bytes(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
