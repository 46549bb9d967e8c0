// The page's source, cli/report/, as cmake/embed_page.cmake put it into the program.
#pragma once

#include <span>
#include <string_view>

namespace tessera::cli {

struct HtmlPage {
  std::string_view markup;  // with @style@, @script@ and @report@ where these belong
  std::string_view style;
  std::span<const std::string_view> scripts;
};

HtmlPage html_page();

}  // namespace tessera::cli
