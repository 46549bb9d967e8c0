// DeepSpeed's universal checkpoints, which its ds_to_universal.py makes of ZeRO folders and which
// any number of ranks loads (load_universal):
//   latest_universal                            the name of the folder
//   global_step4/zero/NAME/fp32.pt              a parameter, {"param": tensor} or a flat tensor
//   global_step4/zero/NAME/exp_avg.pt, ...      its moments in the same form, and step.pt
//   global_step4/zero/optimizer_state.pt        hyperparameters
//   global_step4/mp_rank_00_model_states.pt     shapes, buffers, the program's state
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "checkpoint/formats/format.h"

namespace tessera::checkpoint::formats {

inline constexpr const char* universal_latest_name = "latest_universal";
inline constexpr const char* universal_tensors_name = "zero";
inline constexpr const char* universal_state_name = "optimizer_state.pt";
inline constexpr const char* universal_model_name = "mp_rank_00_model_states.pt";
// Under stage 3 DeepSpeed looks for the model's file under this name.
inline constexpr const char* universal_stage_3_model_name =
    "zero_pp_rank_0_mp_rank_00_model_states.pt";

// True for the path in the folder of a file that create_universal writes.
bool is_universal_file(std::string_view name);
// Writes such a folder. `contents` must outlive the sink.
std::unique_ptr<Sink> create_universal(const std::filesystem::path& folder,
                                       const Contents& contents, const WriteOptions& options);

}  // namespace tessera::checkpoint::formats
