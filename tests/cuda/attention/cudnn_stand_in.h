// A table of functions that replaces cuDNN: it keeps the descriptors of the backend interface,
// checks them as the library's reference describes them, and runs plans with an interpreter.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "cuda/attention/cudnn_interpreter.h"
#include "kernels/cuda/cudnn/cudnn_library.h"

namespace tessera::testing::cudnn {

// The calls of the stand-in, and its answers.
struct Record {
  int handles = 0, descriptors = 0;  // live objects
  int created_handles = 0, graphs = 0, executions = 0;
  bool has_engine = true;
  int create_status = 0, plan_status = 0, execute_status = 0;
  std::int64_t workspace_bytes = 1000;
  cudaStream_t stream = nullptr;
};
inline Record record;

inline std::size_t version() {
  return 91900;
}
inline const char* status_name(int) {
  return "CUDNN_STATUS_NOT_SUPPORTED";
}
inline void last_error(char* message, std::size_t size) {
  std::snprintf(message, size, "the stand-in refuses");
}
inline int create(void** handle) {
  if (record.create_status != 0) return record.create_status;
  ++record.handles;
  ++record.created_handles;
  *handle = &record;
  return 0;
}
inline int destroy(void*) {
  --record.handles;
  return 0;
}
inline int set_stream(void* handle, cudaStream_t stream) {
  EXPECT_EQ(handle, &record);
  record.stream = stream;
  return 0;
}
inline int create_descriptor(int type, void** created) {
  ++record.descriptors;
  *created = std::make_unique<Descriptor>(Descriptor{.type = type, .attributes = {}}).release();
  return 0;
}
inline int destroy_descriptor(void* descriptor) {
  const std::unique_ptr<Descriptor> owned(static_cast<Descriptor*>(descriptor));
  --record.descriptors;
  return 0;
}

// The bytes of an element of cudnnBackendAttributeType_t.
inline std::size_t bytes_of(int type) {
  switch (type) {
    case 2:
      return 1;
    case 0:
    case 3:
    case 6:
    case 15:
      return 8;
    default:
      return 4;
  }
}

inline int set_attribute(void* descriptor, int attribute, int type, std::int64_t count,
                         const void* values) {
  auto& d = *static_cast<Descriptor*>(descriptor);
  EXPECT_FALSE(d.finalized) << "attribute " << attribute;
  if (type == 15) {
    for (std::int64_t i = 0; i < count; ++i) {
      EXPECT_TRUE(static_cast<Descriptor* const*>(values)[i]->finalized) << attribute;
    }
  }
  const auto* const bytes = static_cast<const std::byte*>(values);
  d.attributes[attribute].assign(bytes, bytes + static_cast<std::size_t>(count) * bytes_of(type));
  return 0;
}

inline int get_attribute(void* descriptor, int attribute, int type, std::int64_t requested,
                         std::int64_t* count, void* values) {
  auto& d = *static_cast<Descriptor*>(descriptor);
  EXPECT_TRUE(d.finalized);
  if (attribute == plan_workspace) {
    EXPECT_EQ(type, 3);
    *count = 1;
    *static_cast<std::int64_t*>(values) = record.workspace_bytes;
    return 0;
  }
  EXPECT_EQ(attribute, heuristics_results);
  *count = record.has_engine ? 2 : 0;
  if (requested == 0) return 0;
  // The first proposal is withdrawn, as the library does with those that it cannot support.
  EXPECT_EQ(requested, 2);
  auto& configuration = *static_cast<Descriptor**>(values)[0];
  configuration.attributes = d.attributes;
  configuration.finalized = true;
  *count = 1;
  return 0;
}

inline int finalize(void* descriptor) {
  auto& d = *static_cast<Descriptor*>(descriptor);
  if (d.type == plan) {
    EXPECT_EQ(d.get<void*>(plan_handle), &record);
    if (record.plan_status != 0) return record.plan_status;
  }
  if (d.type == graph) {
    EXPECT_EQ(d.get<void*>(graph_handle), &record);
    ++record.graphs;
  }
  d.finalized = true;
  return 0;
}

inline int execute(void* handle, void* plan_descriptor, void* pack_descriptor) {
  EXPECT_EQ(handle, &record);
  if (record.execute_status != 0) return record.execute_status;
  ++record.executions;
  const auto& p = *static_cast<Descriptor*>(plan_descriptor);
  const auto& variant_pack = *static_cast<Descriptor*>(pack_descriptor);
  EXPECT_TRUE(p.finalized && variant_pack.finalized);
  EXPECT_NE(variant_pack.get<void*>(pack_workspace), nullptr);
  Interpreter interpreter(variant_pack);
  const Descriptor& operations = p.child(plan_configuration).child(heuristics_graph);
  for (const auto* operation : operations.all<const Descriptor*>(graph_operations)) {
    interpreter.run(*operation);
  }
  return 0;
}

inline kernels::cuda::Cudnn stand_in() {
  return {version,           status_name,        last_error,    create,        destroy,  set_stream,
          create_descriptor, destroy_descriptor, set_attribute, get_attribute, finalize, execute};
}

}  // namespace tessera::testing::cudnn
