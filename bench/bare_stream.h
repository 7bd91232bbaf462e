#pragma once
// The bare loop that transfers are measured against: writes of 1 MiB on one side, reads of 1 MiB on
// the other, between two processes over loopback, nothing else. Memory on both sides is the
// caller's, touched beforehand.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "weft/base/result.h"

namespace weft::bench {

// Listens on a free port of 127.0.0.1, tells it to `listening`, and receives for ever: each
// connection says which part of `memory` it brings and gets one byte back when that is there.
Result<void> blocking_receive_for_ever(std::span<std::byte> memory,
                                       const std::function<void(std::uint16_t)>& listening);

// Sends `bytes` on so many connections, an equal part on each. Returns the seconds from the first
// byte out until the receiver has all.
Result<double> blocking_send_bare(std::uint16_t port, std::span<const std::byte> bytes,
                                  unsigned connections);

}  // namespace weft::bench
