# For the wheel (pyproject.toml): libraries that the program opens by name while it runs, in lib/ beside its bin/.
# auditwheel bundles those that the program links. NVIDIA's stay out: the module finds them in their own packages.
foreach(name IN ITEMS libonig.so.5 libzstd.so.1)
  find_library(tessera_wheel_${name} NAMES ${name} REQUIRED)
  file(REAL_PATH ${tessera_wheel_${name}} file)
  install(PROGRAMS ${file} DESTINATION ${CMAKE_INSTALL_LIBDIR} RENAME ${name} COMPONENT wheel)
endforeach()
file(RELATIVE_PATH tessera_libraries_from_program ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(tessera_program PROPERTIES INSTALL_RPATH "\$ORIGIN/${tessera_libraries_from_program}")
