// Writes the page of a JSON report, for the judges: render_page REPORT.json PAGE.html.
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/report/html_report.h"

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: render_page REPORT.json PAGE.html\n");
    return 2;
  }
  try {
    std::ifstream stream(arguments[1], std::ios::binary);
    tessera::cli::write_html_report(nlohmann::ordered_json::parse(stream), arguments[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
