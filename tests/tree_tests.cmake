# Tests of the source tree, the installed package and the program are the same in every build: one build runs them.
add_test(NAME tidiness/tree
         COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/tidiness.py ${PROJECT_SOURCE_DIR})
add_test(NAME tidiness/checker
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/tidiness_test.py)
add_test(NAME tidiness/summary
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/summary_test.py)
add_test(NAME tidiness/documents
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/readme_test.py ${PROJECT_SOURCE_DIR})
add_test(NAME tidiness/named_tests
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/named_tests_test.py)
add_test(NAME tidiness/setup
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/setup_test.py ${PROJECT_SOURCE_DIR})
add_test(NAME tidiness/public_headers
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/public_headers_test.py
                 ${CMAKE_COMMAND} ${PROJECT_SOURCE_DIR}/cmake/write_public_headers.cmake)
add_test(NAME tidiness/tidy_together
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/tidy_together_test.py)
add_test(NAME tidiness/tests_in_turn
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/tests_in_turn_test.py)
add_test(NAME tidiness/compile_alone
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/compile_alone_test.py)
# The objects of each floor, from the ground up.
set(tessera_floor_lines "")
foreach(floor IN LISTS tessera_floors tessera_program_floors)
  string(APPEND tessera_floor_lines "${floor} $<JOIN:$<TARGET_OBJECTS:tessera_${floor}>, >\n")
endforeach()
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/floor_objects.txt CONTENT "${tessera_floor_lines}")
add_test(NAME tidiness/link_order
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/link_order.py
                 ${CMAKE_BINARY_DIR}/floor_objects.txt)
add_test(NAME tidiness/link_order_checker
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/tidiness/link_order_test.py ${CMAKE_CXX_COMPILER})
set_tests_properties(tidiness/tree tidiness/checker tidiness/link_order tidiness/link_order_checker tidiness/summary tidiness/documents
                     tidiness/named_tests tidiness/setup
                     tidiness/public_headers tidiness/tidy_together tidiness/tests_in_turn tidiness/compile_alone PROPERTIES
                     LABELS "tidiness;quick" TIMEOUT 120)
set_tests_properties(tidiness/tidy_together PROPERTIES LABELS "tidiness;longer")
if(NOT TARGET tessera_program)
  return()
endif()

# They link the library from the archive of this build.
if(NOT BUILD_SHARED_LIBS)
  foreach(test IN ITEMS installed_package parent_project shared_library debian_package)
    add_test(NAME consumer/${test} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/consumer/${test}
                                           ${CMAKE_BINARY_DIR} ${CMAKE_CXX_COMPILER})
    set_tests_properties(consumer/${test} PROPERTIES
                         LABELS "consumer;slow" TIMEOUT 600 SKIP_RETURN_CODE 77)
  endforeach()
  set_tests_properties(consumer/installed_package consumer/shared_library PROPERTIES PROCESSORS 2)  # they train
endif()
add_test(NAME cli/completion
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/cli/completion_test.py
                 $<TARGET_FILE:tessera_program> ${PROJECT_SOURCE_DIR}/cli/completion.bash)
add_test(NAME bench/seed_table
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/bench/seed_table_test.py ${PROJECT_SOURCE_DIR})
set_tests_properties(cli/completion PROPERTIES LABELS "cli;longer" TIMEOUT 60)
set_tests_properties(bench/seed_table PROPERTIES LABELS "bench;quick" TIMEOUT 60)
# Compares the planner's predictions with published runs: within 20 %, or with a cause, and in the measured order.
add_test(NAME cli/published_runs
         COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/bench/published/compare.py
                 --program $<TARGET_FILE:tessera_program>)
set_tests_properties(cli/published_runs PROPERTIES LABELS "cli;longer" TIMEOUT 300)
# Random recipes; to run for hours, with another seed each time: scripts/random-recipes --seconds 10000
add_test(NAME cli/random_recipes
         COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/scripts/random-recipes --seconds 30 --seed 1
                 --program $<TARGET_FILE:tessera_program>)
set_tests_properties(cli/random_recipes PROPERTIES LABELS "cli;slow" TIMEOUT 600 PROCESSORS 2)
# Signals at random moments of a run; for more of them: scripts/random-signals --moments 1000
add_test(NAME cli/random_signals
         COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/scripts/random-signals --moments 12 --seed 1
                 --program $<TARGET_FILE:tessera_program>)
set_tests_properties(cli/random_signals PROPERTIES LABELS "cli;slow" TIMEOUT 600 PROCESSORS 2)
# Hosts that are network namespaces, where the machine allows them.
foreach(part IN ITEMS faults bits)
  add_test(NAME several_hosts/${part}
           COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/scripts/several-hosts ${part}
                   --program $<TARGET_FILE:tessera_program> --ranks $<TARGET_FILE:control_ranks>)
  set_tests_properties(several_hosts/${part} PROPERTIES LABELS "several_hosts;slow" TIMEOUT 900 PROCESSORS 2
                       SKIP_RETURN_CODE 77)
endforeach()
if(TARGET emulated_tessera)
  add_test(NAME cuda/random_recipes
           COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/scripts/random-recipes --seconds 30 --seed 1
                   --device cuda --program $<TARGET_FILE:emulated_tessera>)
  set_tests_properties(cuda/random_recipes PROPERTIES LABELS "cuda;slow" TIMEOUT 600
                       ENVIRONMENT "TESSERA_EMULATOR_MEMORY=268435456;TESSERA_EMULATOR_CHECK=halt")
endif()
# A document's statements about the program's keys.
add_test(NAME consumer/from_accelerate
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/consumer/from_accelerate_test.py
                 ${CMAKE_BINARY_DIR}/tessera ${PROJECT_SOURCE_DIR})
set_tests_properties(consumer/from_accelerate PROPERTIES LABELS "consumer;longer" TIMEOUT 120)
# The manifests of deploy/, each with its platform's part played by the test.
add_test(NAME consumer/deploy
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/consumer/deploy_test.py
                 ${CMAKE_BINARY_DIR}/tessera ${PROJECT_SOURCE_DIR})
set_tests_properties(consumer/deploy PROPERTIES LABELS "consumer;longer" TIMEOUT 240 PROCESSORS 2 SKIP_RETURN_CODE 77)
# A document's statements about a checkpoint's bytes.
add_test(NAME cli/second_reader
         COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/cli/commands/second_reader_test.py
                 ${CMAKE_BINARY_DIR}/tessera ${PROJECT_SOURCE_DIR})
set_tests_properties(cli/second_reader PROPERTIES LABELS "cli;quick" TIMEOUT 120)
# The examples of the README and of docs/cpp-api.md, as a user starts them. examples/ is added after the tests, so by path.
if(TESSERA_EXAMPLES)
  add_test(NAME consumer/own_module_example
           COMMAND ${CMAKE_BINARY_DIR}/tessera launch --nproc-per-node 2 -- ${CMAKE_BINARY_DIR}/examples/own_module
                   ${CMAKE_BINARY_DIR}/own-module-checkpoint)
  set_tests_properties(consumer/own_module_example PROPERTIES LABELS "consumer;quick" TIMEOUT 120 PROCESSORS 2)
  add_test(NAME consumer/own_program_error
           COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/consumer/own_program_error_test.py
                   ${CMAKE_BINARY_DIR}/tessera ${CMAKE_BINARY_DIR}/examples/own_module)
  set_tests_properties(consumer/own_program_error PROPERTIES LABELS "consumer;quick" TIMEOUT 120 PROCESSORS 2)
  add_test(NAME consumer/own_encoder_example
           COMMAND ${CMAKE_BINARY_DIR}/tessera launch --nproc-per-node 2 -- ${CMAKE_BINARY_DIR}/examples/own_encoder)
  add_test(NAME consumer/buffers_example
           COMMAND ${CMAKE_BINARY_DIR}/tessera launch --nproc-per-node 2 -- ${CMAKE_BINARY_DIR}/examples/buffers
                   ${CMAKE_BINARY_DIR}/buffers)
  set_tests_properties(consumer/buffers_example PROPERTIES LABELS "consumer;quick" TIMEOUT 120 PROCESSORS 2)
  # Trained under every strategy on 2 ranks and resumed on this number.
  foreach(example IN ITEMS "own_optimizer:4" "own_op:3" "mixture_of_experts:3" "vision_transformer:3" "encoder_decoder:3"
          "sequence_to_sequence:3")
    string(REPLACE ":" ";" example "${example}")
    list(GET example 0 name)
    list(GET example 1 ranks)
    add_test(NAME consumer/${name}_example
             COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/consumer/example_bits_test.py
                     ${CMAKE_BINARY_DIR}/tessera ${CMAKE_BINARY_DIR}/examples/${name} ${ranks})
    set_tests_properties(consumer/${name}_example PROPERTIES LABELS "consumer;quick" TIMEOUT 240 PROCESSORS 2)
  endforeach()
  add_test(NAME consumer/own_adapter_example
           COMMAND ${CMAKE_BINARY_DIR}/tessera launch --nproc-per-node 2 -- ${CMAKE_BINARY_DIR}/examples/own_adapter
                   ${CMAKE_BINARY_DIR}/own-adapter)
  set_tests_properties(consumer/own_adapter_example PROPERTIES LABELS "consumer;quick" TIMEOUT 120 PROCESSORS 2)
  set_tests_properties(consumer/own_encoder_example PROPERTIES LABELS "consumer;quick" TIMEOUT 120 PROCESSORS 2)
  add_test(NAME consumer/adversarial_example
           COMMAND ${CMAKE_BINARY_DIR}/tessera launch --nproc-per-node 2 -- ${CMAKE_BINARY_DIR}/examples/adversarial)
  set_tests_properties(consumer/adversarial_example PROPERTIES LABELS "consumer;quick" TIMEOUT 120 PROCESSORS 2)
  add_test(NAME consumer/partial_load_example
           COMMAND ${CMAKE_BINARY_DIR}/tessera launch --nproc-per-node 2 -- ${CMAKE_BINARY_DIR}/examples/partial_load
                   ${CMAKE_BINARY_DIR}/partial-load)
  set_tests_properties(consumer/partial_load_example PROPERTIES LABELS "consumer;quick" TIMEOUT 120 PROCESSORS 2)
  add_test(NAME consumer/long_sequences_example
           COMMAND ${CMAKE_BINARY_DIR}/tessera launch --nproc-per-node 4 -- ${CMAKE_BINARY_DIR}/examples/long_sequences)
  set_tests_properties(consumer/long_sequences_example PROPERTIES LABELS "consumer;quick" TIMEOUT 120 PROCESSORS 2)
  add_test(NAME consumer/ring_example
           COMMAND ${CMAKE_BINARY_DIR}/tessera launch --nproc-per-node 3 -- ${CMAKE_BINARY_DIR}/examples/ring)
  set_tests_properties(consumer/ring_example PROPERTIES LABELS "consumer;quick" TIMEOUT 120 PROCESSORS 2)
  add_test(NAME consumer/trainer_example
           COMMAND ${CMAKE_BINARY_DIR}/tessera launch --nproc-per-node 2 -- ${CMAKE_BINARY_DIR}/examples/trainer
                   ${CMAKE_BINARY_DIR}/trainer-checkpoint 25)
  set_tests_properties(consumer/trainer_example PROPERTIES LABELS "consumer;quick" TIMEOUT 120 PROCESSORS 2)
  # The commands of README.md and docs/.
  add_test(NAME consumer/pages
           COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/consumer/pages_test.py
                   ${PROJECT_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(consumer/pages PROPERTIES LABELS "consumer;longer" TIMEOUT 900 PROCESSORS 2)
  add_test(NAME consumer/sequence_model_example
           COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/consumer/sequence_model_test.py
                   ${CMAKE_BINARY_DIR}/tessera ${CMAKE_BINARY_DIR}/examples/sequence_model)
  set_tests_properties(consumer/sequence_model_example PROPERTIES LABELS "consumer;longer" TIMEOUT 120 PROCESSORS 2)
endif()
# The program runs on machines with and without CUDA.
if(TESSERA_CUDA)
  add_test(NAME cuda/program_without_cuda
           COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_CURRENT_SOURCE_DIR}/cuda/program_without_cuda_test.py
                   $<TARGET_FILE:tessera_program>)
  set_tests_properties(cuda/program_without_cuda PROPERTIES LABELS "cuda;quick" TIMEOUT 120)
endif()
