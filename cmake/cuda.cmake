# The CUDA device of `tessera`: kernels compiled by nvcc. The CUDA runtime is linked statically, so that the program
# starts on machines without CUDA; cuBLASLt and NCCL are loaded at their first use. Included where TESSERA_CUDA is on.
set(tessera_cu_sources ${tessera_cuda_sources})
list(FILTER tessera_cu_sources INCLUDE REGEX "\\.cu$")
set(tessera_cuda_host_sources ${tessera_cuda_sources})
list(FILTER tessera_cuda_host_sources INCLUDE REGEX "\\.cpp$")

# CMake 3.25 does not know how to ask the newest nvcc for C++20, hence -std. Register spills and local memory in a
# kernel fail the compilation on purpose.
add_library(tessera_cuda_kernels OBJECT ${tessera_cu_sources})
set_target_properties(tessera_cuda_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(tessera_cuda_kernels PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_options(tessera_cuda_kernels PRIVATE
  -std=c++20 --expt-relaxed-constexpr -Werror=all-warnings -Xcompiler=-Wall,-Wextra
  -Xptxas=-Werror,-warn-spills,-warn-lmem-usage)

tessera_together(tessera_cuda_host_sources cuda_host 8)
add_library(tessera_cuda_host OBJECT ${tessera_cuda_host_sources})
tessera_library_usage(tessera_cuda_host)
target_include_directories(tessera_cuda_host SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})

target_sources(tessera PRIVATE $<TARGET_OBJECTS:tessera_cuda_kernels> $<TARGET_OBJECTS:tessera_cuda_host>)
target_link_libraries(tessera PRIVATE CUDA::cudart_static)
