// Starts the helper, talks with it, and says why it ended.
#include "tasks/columnar/parquet_helper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/error.h"

extern char** environ;

namespace tessera::tasks {
namespace {

// Words end with a zero byte. For each file: its path comes; the columns go, as a stream without
// rows; the names of the wanted ones come, then an empty word; their rows go.
constexpr const char* helper_script = R"python(
import inspect, os, sys
sys.path = [place for place in sys.path if place]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # otherwise NumPy starts threads that spin
try:
    import pyarrow
    import pyarrow.parquet
except ImportError as error:
    sys.stderr.write(str(error))
    sys.exit(9)

def word():
    letters = bytearray()
    while (letter := sys.stdin.buffer.read(1)) != b"\0":
        if not letter:
            sys.exit(0)
        letters += letter
    return os.fsdecode(bytes(letters))

# The size on the pipe: a dictionary goes once.
def size_of(batch):
    return sum((column.indices if isinstance(column, pyarrow.DictionaryArray) else column).nbytes
               for column in batch.columns)

def pieces(batch):
    half = batch.num_rows // 2
    if half == 0 or size_of(batch) <= 8 << 20:
        yield batch
        return
    yield from pieces(batch.slice(0, half))
    yield from pieces(batch.slice(half))

# An upper bound only: a text that its column's dictionary holds once may be in all rows.
def most_rows(group, columns):
    sizes = (group.column(i) for i in range(group.num_columns))
    size = sum(one.total_uncompressed_size for one in sizes
               if any((one.path_in_schema + ".").startswith(name + ".") for name in columns))
    return max(1, min(1 << 16, group.num_rows * (4 << 20) // max(size, 1)))

# A pyarrow before 13 cannot compare the checksums of pages.
ParquetFile = pyarrow.parquet.ParquetFile
checks = {"page_checksum_verification": True}
if not checks.keys() <= inspect.signature(ParquetFile).parameters.keys():
    checks = {}

def send(out, path):
    file = ParquetFile(path, pre_buffer=False, buffer_size=1 << 20, **checks)
    pyarrow.ipc.new_stream(out, file.schema_arrow).close()
    out.flush()
    columns = []
    while name := word():
        columns.append(name)
    writer = None
    rows = 64
    for i in range(file.num_row_groups):
        most = most_rows(file.metadata.row_group(i), columns)
        rows = min(rows, most)
        for batch in file.iter_batches(rows, row_groups=[i], columns=columns, use_threads=False):
            writer = writer or pyarrow.ipc.new_stream(out, batch.schema)
            for piece in pieces(batch):
                writer.write_batch(piece)
            fitting = batch.num_rows * (4 << 20) // max(size_of(batch), 1)
            rows = max(1, min(fitting, 8 * rows, most))
            # This applies to the next batch. A pyarrow without it makes batches of 64 rows, or of fewer.
            getattr(file.reader, "set_batch_size", id)(rows)
    if writer is None:
        writer = pyarrow.ipc.new_stream(out, file.read(columns=columns).schema)
    writer.close()
    out.flush()
    file.close()

try:
    while True:
        send(sys.stdout.buffer, word())
except BrokenPipeError:
    sys.exit(0)
except Exception as error:
    sys.stderr.write(" ".join(str(error).split()))
    sys.exit(3)
)python";
constexpr int no_pyarrow = 9;
constexpr int pipe_bytes = 1 << 20;
constexpr const char* way_out =
    "install pyarrow (pip install pyarrow), name a Python that has it in TESSERA_PYTHON, or give "
    "Arrow IPC files";

// The descriptors of the child's side; closed in any case.
struct ChildEnds {
  int in = -1;
  int out = -1;
  ~ChildEnds() {
    if (in >= 0) ::close(in);
    if (out >= 0) ::close(out);
  }
};

}  // namespace

ParquetHelper::ParquetHelper() {
  const char* const named = std::getenv(python_variable);
  python_ = named != nullptr && *named != '\0' ? named : "python3";
}

ParquetHelper::~ParquetHelper() {
  stop();
}

void ParquetHelper::stop() {
  reader_.reset();
  input_.reset();
  for (int* const descriptor : {&to_, &from_, &messages_}) {
    if (*descriptor >= 0) ::close(*descriptor);
    *descriptor = -1;
  }
  if (process_ < 0) return;
  ::kill(process_, SIGKILL);
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
  process_ = -1;
}

void ParquetHelper::start() {
  // A socket, because a write to a pipe whose reader is gone is a signal.
  int requests[2] = {-1, -1};
  int rows[2] = {-1, -1};
  TESSERA_SYSTEM(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, requests));
  to_ = requests[0];
  ChildEnds child{requests[1], -1};
  TESSERA_SYSTEM(::pipe2(rows, O_CLOEXEC));
  from_ = rows[0];
  child.out = rows[1];
  (void)::fcntl(from_, F_SETPIPE_SZ, pipe_bytes);  // otherwise it is slower
  messages_ = TESSERA_SYSTEM(::memfd_create("tessera-parquet", MFD_CLOEXEC));

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child.in, 0);
  posix_spawn_file_actions_adddup2(&actions, child.out, 1);
  posix_spawn_file_actions_adddup2(&actions, messages_, 2);
  // It ends when its pipes close, not by a terminal's Ctrl-C, which this process may take as a
  // wish.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  std::string arguments[] = {python_, "-c", helper_script};
  char* const argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  const int problem =
      ::posix_spawnp(&process_, python_.c_str(), &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (problem != 0) process_ = -1;
  TESSERA_CHECK(problem == 0, ErrorCode::configuration,
                "data file {} is Parquet, which Python with pyarrow reads, and {} cannot be "
                "started ({}); {}",
                path_, python_, describe_errno("posix_spawn", problem), way_out);
  input_ = read_arrow_pipe(from_, fmt::format("data file {}", path_));
}

void ParquetHelper::explain(const std::string& otherwise) {
  char text[4096];
  int status = 0;
  if (process_ >= 0) {
    // A helper whose output has ended ends, too. One that sends what is not Arrow is ended.
    ::close(std::exchange(from_, -1));
    ::close(std::exchange(to_, -1));
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
  }
  const ssize_t got = ::pread(messages_, text, sizeof(text), 0);
  std::string_view said(text, static_cast<std::size_t>(got > 0 ? got : 0));
  while (said.ends_with('\n')) said.remove_suffix(1);
  said.remove_prefix(said.rfind('\n') + 1);  // one line, the last
  const std::string path = path_;
  if (WIFEXITED(status) && WEXITSTATUS(status) == no_pyarrow) {
    fail(ErrorCode::configuration,
         "data file {} is Parquet, which Python with pyarrow reads, and {} has none ({}); {}", path,
         python_, said, way_out);
  }
  TESSERA_CHECK(!WIFSIGNALED(status), ErrorCode::data,
                "data file {}: the Python that reads it was ended by signal {}", path,
                WTERMSIG(status));
  TESSERA_CHECK(said.empty(), ErrorCode::data, "data file {}: {}", path, said);
  fail(ErrorCode::data, "{}", otherwise);
}

template <class Work>
decltype(auto) ParquetHelper::explained(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    explain(error.what());
  }
}

void ParquetHelper::send(const std::string& words) {
  for (std::size_t done = 0; done < words.size();) {
    const ssize_t sent = ::send(to_, words.data() + done, words.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    TESSERA_CHECK(sent > 0, ErrorCode::data, "data file {}: the Python that reads it has ended",
                  path_);
    done += static_cast<std::size_t>(sent);
  }
}

ArrowSchema ParquetHelper::open(const std::filesystem::path& path) {
  path_ = path.string();
  if (process_ < 0) start();
  return explained([&] {
    send(path_ + '\0');
    ArrowReader columns(*input_, fmt::format("data file {}", path_), true);
    TESSERA_CHECK(!columns.next(), ErrorCode::data, "data file {}: rows before their columns",
                  path_);
    return columns.schema();
  });
}

ArrowReader& ParquetHelper::rows(const std::vector<std::string>& columns) {
  for (const std::string& column : columns) {
    TESSERA_CHECK(!column.empty(), ErrorCode::data,
                  "data file {}: a column of Parquet without a name is not read; give it one",
                  path_);
  }
  return explained([&]() -> ArrowReader& {
    std::string words;
    for (const std::string& column : columns) words += column + '\0';
    send(words + '\0');
    reader_ = std::make_unique<ArrowReader>(*input_, fmt::format("data file {}", path_), true);
    return *reader_;
  });
}

bool ParquetHelper::next() {
  return explained([&] { return reader_->next(); });
}

}  // namespace tessera::tasks
