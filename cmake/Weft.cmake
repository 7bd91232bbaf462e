# The functions every module is built with. One library and one test program a module, sources named one by one.

add_library(weft_warnings INTERFACE)
target_compile_options(weft_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Wold-style-cast -Wcast-align
  -Woverloaded-virtual -Wimplicit-fallthrough -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports -Wrestrict on `"a" + std::to_string(x)` (GCC bug 105651), and maybe-uninitialized and
  # stringop-overflow inside its own library headers at -O2.
  target_compile_options(weft_warnings INTERFACE -Wno-restrict -Wno-maybe-uninitialized -Wno-stringop-overflow)
else()
  # Clang's -Wconversion includes it, GCC's does not: literals in tests would need casts.
  target_compile_options(weft_warnings INTERFACE -Wno-sign-conversion)
endif()

add_library(weft_options INTERFACE)
target_include_directories(weft_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
target_compile_options(weft_options INTERFACE -fno-omit-frame-pointer)
target_link_libraries(weft_options INTERFACE Threads::Threads)
if(WEFT_SANITIZE STREQUAL "address")
  set(WEFT_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=all)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    list(APPEND WEFT_SANITIZE_FLAGS -fno-sanitize=function)
  endif()
elseif(WEFT_SANITIZE STREQUAL "thread")
  set(WEFT_SANITIZE_FLAGS -fsanitize=thread)
elseif(WEFT_SANITIZE)
  message(FATAL_ERROR "WEFT_SANITIZE is `${WEFT_SANITIZE}`; it may be empty, `address` or `thread`")
endif()
if(WEFT_SANITIZE_FLAGS)
  target_compile_options(weft_options INTERFACE ${WEFT_SANITIZE_FLAGS})
  target_link_options(weft_options INTERFACE ${WEFT_SANITIZE_FLAGS})
endif()

# What is linked into libweft.so is position independent, and only what says WEFT_API is visible from outside.
function(weft_set_visibility target)
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# weft_library(NAME SOURCES a.cc ... [DEPS module ...] [LIBS target ...])
# Makes weft_NAME. DEPS are weft modules (tools/check_layers.py holds the table of allowed edges), LIBS are
# third-party targets, private to the module.
function(weft_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_library(weft_${name} STATIC ${A_SOURCES})
  weft_set_visibility(weft_${name})
  list(TRANSFORM A_DEPS PREPEND weft_)
  target_link_libraries(weft_${name} PUBLIC weft_options ${A_DEPS} PRIVATE weft_warnings ${A_LIBS})
endfunction()

# weft_test(NAME SOURCES a_test.cc ... [DEPS module ...] [LIBS target ...] [LABEL label] [TIMEOUT seconds])
# Makes NAME_test and registers it with CTest. Without WEFT_PROGRAMS it is named, but not built.
function(weft_test name)
  cmake_parse_arguments(A "" "LABEL;TIMEOUT" "SOURCES;DEPS;LIBS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  if(WEFT_PROGRAMS)
    add_executable(${name}_test ${A_SOURCES})
    list(TRANSFORM A_DEPS PREPEND weft_)
    target_link_libraries(${name}_test PRIVATE weft_warnings ${A_DEPS} ${A_LIBS} GTest::gmock GTest::gtest_main)
  else()
    add_executable(${name}_test EXCLUDE_FROM_ALL ${A_SOURCES})
  endif()
  add_test(NAME ${name} COMMAND ${name}_test)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABEL}"
    ENVIRONMENT "WEFT_SOURCE_DIR=${CMAKE_SOURCE_DIR};WEFT_BINARY_DIR=${CMAKE_BINARY_DIR}")
endfunction()
