# weft_rust: one static library for everything taken from crates (two Rust libraries in one program clash):
# blake3, tokenizers, minijinja. All presets share it; cargo itself knows when there is nothing to do.

# Debian's own; the cargo first in PATH may be another.
find_program(WEFT_CARGO cargo PATHS /usr/bin NO_DEFAULT_PATH REQUIRED)
if(WEFT_PROGRAMS)
  set(WEFT_RUST_TARGET ${CMAKE_SOURCE_DIR}/build/rust)
else()  # blake3 alone
  set(WEFT_RUST_TARGET ${CMAKE_SOURCE_DIR}/build/rust-blake3)
  set(WEFT_RUST_FEATURES --no-default-features)
endif()
set(WEFT_RUST_LIBRARY ${WEFT_RUST_TARGET}/release/libweft_rust.a)
file(GLOB_RECURSE WEFT_RUST_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/rust/src/*.rs)

add_custom_command(
  OUTPUT ${WEFT_RUST_LIBRARY}
  COMMAND ${CMAKE_COMMAND} -E env RUSTC=/usr/bin/rustc ${WEFT_CARGO} build --release --quiet
          --manifest-path ${CMAKE_SOURCE_DIR}/rust/Cargo.toml --target-dir ${WEFT_RUST_TARGET} ${WEFT_RUST_FEATURES}
  COMMAND ${CMAKE_COMMAND} -E touch ${WEFT_RUST_LIBRARY}
  DEPENDS ${CMAKE_SOURCE_DIR}/rust/Cargo.toml ${WEFT_RUST_SOURCES}
  COMMENT "Building the Rust library (tokenizers, minijinja, blake3)"
  USES_TERMINAL VERBATIM)
add_custom_target(weft_rust_build DEPENDS ${WEFT_RUST_LIBRARY})

add_library(weft_rust INTERFACE)
add_dependencies(weft_rust weft_rust_build)
target_include_directories(weft_rust INTERFACE ${CMAKE_SOURCE_DIR}/rust/include)
target_link_libraries(weft_rust INTERFACE ${WEFT_RUST_LIBRARY} Threads::Threads ${CMAKE_DL_LIBS} m)
