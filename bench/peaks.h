#pragma once
// What the machine gives at this moment: no program that reads all its weights for each token, or
// multiplies in fp32, can be faster.

#include <cstddef>
#include <span>

namespace weft::bench {

// Reads all of `bytes` eight times with so many threads. Bytes a second. Blocks.
double blocking_read_rate(std::span<const std::byte> bytes, unsigned threads);
// fp32 multiplications and additions (two for each FMA) a second, registers alone, for some 50 ms.
// Blocks.
double blocking_flop_rate(unsigned threads);

}  // namespace weft::bench
