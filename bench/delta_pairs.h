#pragma once
// Pairs of consecutive bf16 versions as RL makes them, by a model: fp32 master weights, AdamW on
// random gradients, published as bf16. The model and what it was checked against:
// docs/performance.md, "Deltas".

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::bench {

// What decides how many elements change.
struct Training {
  double learning_rate;
  unsigned steps_per_publish;
  double drift;  // of an element's gradient: its mean, in standard deviations
};

// Master weights do not change their own gradients in this model, so how an element moves is drawn
// apart from where it is. Whole runs of the optimiser are simulated for this many elements.
inline constexpr std::size_t kMoves = std::size_t{1} << 18;

struct Moves {
  std::vector<float> before, after;  // from the initial weight to the two versions
};
// To step 60, the later of the two versions.
Moves simulate_moves(const Training& training);

// Elements of a tile; each has a seed of its own.
inline constexpr std::size_t kTileElements = std::size_t{32} << 20;
// `count`: a multiple of a row's 4,096.
void make_tile(const Moves& moves, std::uint64_t seed, std::size_t count, std::uint16_t* base,
               std::uint16_t* next);

}  // namespace weft::bench
