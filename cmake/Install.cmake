# `make install`: libweft with its header, for CMake (find_package(weft)) and pkg-config, and the program.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(WEFT_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
install(TARGETS weft_shared EXPORT weft LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_SOURCE_DIR}/include/weft/weft.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weft COMPONENT library)
install(EXPORT weft NAMESPACE weft:: FILE weft-config.cmake DESTINATION ${WEFT_CMAKE_DIR} COMPONENT library)
# A minor release may take something away while the major number is 0.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/weft-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/weft-config-version.cmake DESTINATION ${WEFT_CMAKE_DIR} COMPONENT library)

# From where the .pc file lies to the prefix, so that the installed tree may be moved.
file(RELATIVE_PATH WEFT_PC_TO_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${CMAKE_SOURCE_DIR}/cmake/weft.pc.in ${CMAKE_BINARY_DIR}/weft.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
if(WEFT_STATIC_LIBRARY)
  install(FILES ${CMAKE_BINARY_DIR}/lib/libweft.a DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
endif()
