// The samples of a WebDataset archive as rows.
// Source: "The WebDataset Format" of https://github.com/webdataset/webdataset (README).
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/data/text_reader.h"

namespace tessera::tasks {

// Files of a tar that follow each other and have the same path up to the first dot of the name are
// a sample: data/0001.txt and data/0001.json. Calls `take` with each sample as an object and its
// place, "text a.tar, sample data/0001". The columns have the names behind the dot, in lower case:
// - .txt, .text, .transcript (and .en.txt, ..): a text, which may be no UTF-8. `txt` is also named
//   `text`, unless the sample has a file .text.
// - .json, .jsn: its value. Members of an object are columns, too, if the sample has no file of
//   their name.
// - __key__: the path without an ending.
// Other files (images, sound) are no columns, and are not read. Names that begin with a dot or with
// two underscores, and names without a dot are passed over. Throws Error(data) with the place: a
// damaged archive, JSON that is none, an ending that a sample has twice, more than 64 MiB of texts
// and JSON in a sample; with the archive's name if it has no sample.
void for_each_tar_sample(
    TextReader& reader,
    const std::function<void(const nlohmann::ordered_json& row, const std::string& place)>& take);

}  // namespace tessera::tasks
