// main() of the test programs. A program contains all tests of a floor. Names of source files on
// its command line select the tests in these files, so that CTest runs each file in a process of
// its own:
//   sharding_tests comm_local_test layout_test     the tests of these two files
//   sharding_tests --files                         the names that can be given
// GoogleTest's own options can be added. A run in which no test matches fails. If
// TESSERA_TEST_REPORTS names a folder, the run writes its report there, as <TESSERA_TEST_NAME>.xml.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

// Calls `visit` with every test of this program.
template <class Visit>
void for_each_test(Visit visit) {
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) visit(suite, *suite.GetTestInfo(j));
  }
}

std::string file_of(const testing::TestInfo& test) {
  return std::filesystem::path(test.file()).stem().string();
}

std::set<std::string> files_with_tests() {
  std::set<std::string> files;
  for_each_test([&](const testing::TestSuite&, const testing::TestInfo& test) {
    files.insert(file_of(test));
  });
  return files;
}

// A filter that, added to the user's own, keeps only the tests of `files`.
std::string without_other_files(std::string filter, const std::vector<std::string>& files) {
  char separator = filter.find('-') == std::string::npos ? '-' : ':';
  for_each_test([&](const testing::TestSuite& suite, const testing::TestInfo& test) {
    if (std::find(files.begin(), files.end(), file_of(test)) != files.end()) return;
    filter += separator;
    filter += std::string(suite.name()) + "." + test.name();
    separator = ':';
  });
  return filter;
}

// Called before GoogleTest reads its options, so that an option on the command line overrides this.
void choose_report() {
  const char* folder = std::getenv("TESSERA_TEST_REPORTS");
  const char* name = std::getenv("TESSERA_TEST_NAME");
  if (folder == nullptr || name == nullptr) return;
  GTEST_FLAG_SET(output, std::string("xml:") + folder + "/" + name + ".xml");
}

// The selection by files is a filter of thousands of names, which GoogleTest would print in each
// run. It has taken effect when the program starts, so its text is removed; the user's own filter
// is still printed.
class ForgetsFilter : public testing::EmptyTestEventListener {
 public:
  explicit ForgetsFilter(std::string given) : given_(std::move(given)) {}
  void OnTestProgramStart(const testing::UnitTest&) override { GTEST_FLAG_SET(filter, given_); }

 private:
  std::string given_;
};

}  // namespace

// oneDNN is not built with the sanitizer. Of the synchronisation of its threads and caches, the
// thread sanitizer sees only the locks in libc, and reports its first use by several ranks at a
// time as a race. Its accesses to our memory are not seen in any case.
extern "C" const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {
  return "called_from_lib:libdnnl.so\n";
}

int main(int argc, char** argv) {
  choose_report();
  testing::InitGoogleTest(&argc, argv);  // removes its options from argv
  const std::set<std::string> known = files_with_tests();
  std::vector<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--files") {
      for (const std::string& file : known) std::puts(file.c_str());
      return 0;
    }
    if (known.count(argv[i]) == 0) {
      std::fprintf(stderr, "%s: no test stands in a file '%s'; --files lists those there are\n",
                   argv[0], argv[i]);
      return 2;
    }
    wanted.emplace_back(argv[i]);
  }
  if (!wanted.empty()) {
    const std::string given = GTEST_FLAG_GET(filter);
    GTEST_FLAG_SET(filter, without_other_files(given, wanted));
    testing::UnitTest::GetInstance()->listeners().Append(
        std::make_unique<ForgetsFilter>(given).release());  // which GoogleTest then owns
  }
  const int status = RUN_ALL_TESTS();
  if (GTEST_FLAG_GET(list_tests) || testing::UnitTest::GetInstance()->test_to_run_count() > 0) {
    return status;
  }
  std::fprintf(stderr,
               "%s: no test matches; --gtest_list_tests lists those there are, and a test is among "
               "those of its own file only\n",
               argv[0]);
  return 2;
}
