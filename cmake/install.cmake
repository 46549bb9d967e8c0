# `cmake --install`: the program, and the library for other projects: its public headers, the package `Tessera` for
# find_package, and tessera.pc for pkg-config. The components are `program` and `development`; a shared library belongs
# to the first.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(tessera_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
get_target_property(tessera_library_type tessera TYPE)

install(TARGETS tessera EXPORT TesseraTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT program NAMELINK_COMPONENT development
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${tessera_public_include}/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION ${tessera_package_folder} COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/TesseraConfig.cmake.in
  ${PROJECT_BINARY_DIR}/TesseraConfig.cmake INSTALL_DESTINATION ${tessera_package_folder})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TesseraConfig.cmake ${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/LICENSE
        DESTINATION ${tessera_package_folder} COMPONENT development)

# For pkg-config. Users of an archive also link the libraries that it is built on (`pkg-config --static`). The prefix is
# derived from the place of the file, so that an installation can be moved.
set(tessera_pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(tessera_pc_prefix ${CMAKE_INSTALL_PREFIX})
cmake_path(RELATIVE_PATH tessera_pc_prefix BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
foreach(kind IN ITEMS LIBDIR INCLUDEDIR)
  cmake_path(IS_ABSOLUTE CMAKE_INSTALL_${kind} absolute)
  set(tessera_pc_${kind} "\${prefix}/${CMAKE_INSTALL_${kind}}")
  if(absolute)
    set(tessera_pc_${kind} ${CMAKE_INSTALL_${kind}})
  endif()
endforeach()
# These libraries are listed as public, because users of an archive always link them: `--static`, which asks for private
# libraries, would also ask for archives of all other libraries.
set(tessera_pc_requires)
set(tessera_pc_libs)
if(tessera_library_type STREQUAL "STATIC_LIBRARY")
  set(tessera_pc_requires " libhwy libxxhash libsodium icu-uc libpcre2-8 sentencepiece")
  set(tessera_pc_libs " -ldnnl ${OpenMP_CXX_FLAGS} -pthread -ldl")
  if(TESSERA_CUDA)
    cmake_path(GET CUDA_cudart_static_LIBRARY PARENT_PATH tessera_cuda_libraries)
    string(APPEND tessera_pc_libs " -L${tessera_cuda_libraries} -lcudart_static -lrt")
  endif()
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${tessera_pc_folder} COMPONENT development)

if(TESSERA_PROGRAM)
  install(TARGETS tessera_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  if(tessera_library_type STREQUAL "SHARED_LIBRARY")
    file(RELATIVE_PATH tessera_libraries_from_program ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
    set_target_properties(tessera_program PROPERTIES INSTALL_RPATH "\$ORIGIN/${tessera_libraries_from_program}")
  endif()
  install(FILES ${PROJECT_SOURCE_DIR}/cli/completion.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          RENAME tessera COMPONENT program)
  # The scripts that `tessera bench --peer` calls.
  set(tessera_peers common data_order deepspeed job language_models pytorch ranks sentence_transformers token_data
      torch_training)
  list(TRANSFORM tessera_peers REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/bench/peers/\\1.py")
  install(FILES ${tessera_peers} DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/peers COMPONENT program)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/CHANGELOG.md
          DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/tessera COMPONENT program)
  # The program contains the cluster files; the installed files are for reading and changing.
  install(FILES ${tessera_clusters} DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/clusters COMPONENT program)
endif()
