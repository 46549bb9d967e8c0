// main() of a program that holds the tests of many source files:
//   PROGRAM [FILE ...] [--files] [GoogleTest's options]
// FILE is a source's name without folder and suffix (fill_test): only the tests of these files run,
// and of those the ones that --gtest_filter selects. --files lists the names there are.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace {

using TestsByFile = std::map<std::string, std::vector<std::string>>;

TestsByFile tests_by_file() {
  TestsByFile tests;
  const auto& program = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const auto& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const auto& test = *suite.GetTestInfo(j);
      tests[std::filesystem::path(test.file()).stem()].push_back(std::string(suite.name()) + "." +
                                                                 test.name());
    }
  }
  return tests;
}

// What is asked for already, without the tests of all other files.
std::string filter_for(const std::set<std::string>& files, const TestsByFile& tests,
                       std::string filter) {
  for (const auto& [file, names] : tests) {
    if (files.contains(file)) continue;
    for (const std::string& name : names) {
      filter += filter.find('-') == std::string::npos ? '-' : ':';
      filter += name;
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);  // takes its own options out of the arguments
  const TestsByFile tests = tests_by_file();
  std::set<std::string> files;
  for (const std::string_view argument : std::vector<std::string_view>(argv + 1, argv + argc)) {
    if (argument == "--files") {
      for (const auto& [file, names] : tests) std::printf("%s\n", file.c_str());
      return 0;
    }
    if (!tests.contains(std::string(argument))) {
      std::fprintf(stderr, "%s: no tests in a file '%s'; --files lists what there is\n", argv[0],
                   std::string(argument).c_str());
      return 2;
    }
    files.emplace(argument);
  }
  if (!files.empty()) {
    GTEST_FLAG_SET(filter, filter_for(files, tests, GTEST_FLAG_GET(filter)));
  }
  return RUN_ALL_TESTS();
}
