# weft_torch: libtorch from the wheel in the build venv (`make setup`). An imported target of our own:
# find_package(Torch) asks for CUDA, and -ltorch leaves undefined symbols.

file(GLOB WEFT_TORCH_ROOT ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
if(NOT WEFT_TORCH_ROOT)
  message(FATAL_ERROR "no libtorch in .venv: run `make setup`, or build without the trainer (-DWEFT_TRAINER=OFF)")
endif()
file(GLOB WEFT_CUDA_LIBS ${WEFT_TORCH_ROOT}/../nvidia/*/lib)

add_library(weft_torch INTERFACE)
target_include_directories(weft_torch SYSTEM INTERFACE
  ${WEFT_TORCH_ROOT}/include ${WEFT_TORCH_ROOT}/include/torch/csrc/api/include)
target_link_libraries(weft_torch INTERFACE ${WEFT_TORCH_ROOT}/lib/libtorch_cpu.so ${WEFT_TORCH_ROOT}/lib/libc10.so)
target_link_options(weft_torch INTERFACE -Wl,-rpath,${WEFT_TORCH_ROOT}/lib)
foreach(dir ${WEFT_CUDA_LIBS})
  target_link_options(weft_torch INTERFACE -Wl,-rpath,${dir} -Wl,-rpath-link,${dir})
endforeach()
