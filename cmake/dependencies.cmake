# The libraries that Tessera links. scripts/packages.txt lists the Debian packages of the same names.
if(NOT TESSERA_SANITIZE MATCHES "thread")  # which does not see OpenMP's barriers: kernels run on their caller
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()
find_package(Threads REQUIRED)
find_package(dnnl CONFIG REQUIRED)
find_package(fmt CONFIG REQUIRED)
find_package(nlohmann_json 3.10 CONFIG REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(libhwy REQUIRED IMPORTED_TARGET GLOBAL libhwy)
pkg_check_modules(libxxhash REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
# Proofs of the control plane (comm/control/job_key.h).
pkg_check_modules(libsodium REQUIRED IMPORTED_TARGET GLOBAL libsodium)
# Tokenizers: characters, patterns, SentencePiece models.
pkg_check_modules(icu-uc REQUIRED IMPORTED_TARGET GLOBAL icu-uc)
pkg_check_modules(libpcre2-8 REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8)
# Only its header: the library is loaded at run time (tokenizers/text/pattern_oniguruma.cpp has the reason).
pkg_check_modules(oniguruma REQUIRED oniguruma)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET GLOBAL sentencepiece)
