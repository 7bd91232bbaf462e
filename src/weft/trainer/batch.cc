#include "weft/trainer/batch.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "weft/trainer/packing.h"

namespace weft {
namespace {

// A prompt's tree is followed by another once it may grow past this: attention and its mask cost
// the square of a row.
constexpr std::size_t kTreeTokens = 256;

struct Node {
  std::uint32_t token;
  std::optional<std::size_t> parent;  // stands before its children
  std::size_t depth;                  // the token's position
};

using Tree = std::vector<Node>;

// Where a sequence's tokens stand.
struct Path {
  std::size_t tree;
  std::vector<std::size_t> nodes;
};

struct Forest {
  std::vector<Tree> trees;
  std::vector<Path> paths;  // [sequences]
};

// Grows trees, one sequence after the other.
class ForestGrower {
 public:
  void add(const TokenSequence& sequence, std::size_t tokens) {
    const std::size_t tree = tree_for(sequence.prompt, tokens);
    Path path{tree, {}};
    std::optional<std::size_t> parent;
    for (std::size_t pos = 0; pos < tokens; ++pos) {
      const std::uint32_t token = pos < sequence.prompt.size()
                                      ? sequence.prompt[pos]
                                      : sequence.answer[pos - sequence.prompt.size()];
      parent = child(tree, parent, token, pos);
      path.nodes.push_back(*parent);
    }
    forest_.paths.push_back(std::move(path));
  }
  Forest take() { return std::move(forest_); }

 private:
  std::size_t tree_for(const std::vector<std::uint32_t>& prompt, std::size_t tokens) {
    const auto [open, is_new] = open_.try_emplace(prompt, forest_.trees.size());
    const bool is_full = !is_new && forest_.trees[open->second].size() + tokens > kTreeTokens;
    if (is_full) open->second = forest_.trees.size();
    if (is_new || is_full) forest_.trees.emplace_back();
    return open->second;
  }

  std::size_t child(std::size_t tree, std::optional<std::size_t> parent, std::uint32_t token,
                    std::size_t depth) {
    Tree& nodes = forest_.trees[tree];
    const auto [at, is_new] = children_.try_emplace({tree, parent, token}, nodes.size());
    if (is_new) nodes.push_back({token, parent, depth});
    return at->second;
  }

  Forest forest_;
  std::map<std::vector<std::uint32_t>, std::size_t> open_;  // the tree of a prompt that grows
  std::map<std::tuple<std::size_t, std::optional<std::size_t>, std::uint32_t>, std::size_t>
      children_;
};

// Of all tokens, or of all but each answer's last, after which nothing is scored.
Forest grow_forest(std::span<const TokenSequence> sequences, bool has_last) {
  ForestGrower grower;
  for (const TokenSequence& sequence : sequences) {
    grower.add(sequence, sequence.prompt.size() + sequence.answer.size() - (has_last ? 0 : 1));
  }
  return grower.take();
}

bool is_chain(const Tree& tree) {
  return tree.back().depth + 1 == tree.size();
}

// Lets the token at `at` in ids see what the one at `parent` sees, and itself.
void show(TokenBatch& batch, std::size_t at, std::optional<std::size_t> parent) {
  const auto sees_of = [&](std::size_t place) { return &batch.sees[place * batch.width]; };
  if (parent) std::copy_n(sees_of(*parent), batch.width, sees_of(at));
  sees_of(at)[at % batch.width] = 1;
}

// Puts a tree's tokens from `begin` in ids on.
void place_tree(TokenBatch& batch, const Tree& tree, std::size_t begin) {
  for (std::size_t node = 0; node < tree.size(); ++node) {
    const auto& [token, parent, depth] = tree[node];
    batch.ids[begin + node] = token;
    if (batch.sees.empty()) continue;
    batch.positions[begin + node] = static_cast<std::int64_t>(depth);
    show(batch, begin + node, parent ? std::optional(begin + *parent) : std::nullopt);
  }
}

// Fills all but what is scored. Returns where each tree begins in ids.
std::vector<std::size_t> lay_out(const std::vector<Tree>& trees, std::size_t row_tokens,
                                 TokenBatch& batch) {
  std::vector<std::size_t> sizes;
  for (const Tree& tree : trees) sizes.push_back(tree.size());
  const bool is_causal = row_tokens == 0 && std::ranges::all_of(trees, is_chain);
  // Trees that branch need a mask, so that the shorter ones may as well share rows.
  if (!is_causal) row_tokens = std::max(row_tokens, std::ranges::max(sizes));
  const auto rows = pack_rows(sizes, row_tokens);
  batch.rows = rows.size();
  for (const auto& row : rows) {
    std::size_t tokens = 0;
    for (const std::size_t tree : row) tokens += sizes[tree];
    batch.width = std::max(batch.width, tokens);
  }
  const std::size_t total = batch.rows * batch.width;
  batch.ids.resize(total);
  if (!is_causal) {
    batch.positions.resize(total);
    batch.sees.resize(total * batch.width);
  }
  std::vector<std::size_t> begins(trees.size());
  for (std::size_t row = 0; row < batch.rows; ++row) {
    std::size_t at = row * batch.width;
    for (const std::size_t tree : rows[row]) {
      begins[tree] = at;
      place_tree(batch, trees[tree], at);
      at += sizes[tree];
    }
    // Padding sees itself: a softmax over nothing is NaN.
    for (; !is_causal && at < (row + 1) * batch.width; ++at) show(batch, at, std::nullopt);
  }
  return begins;
}

// Collects places, each once, and who looks at them.
class Scores {
 public:
  explicit Scores(TokenBatch& batch) : batch_(batch), known_(batch.ids.size(), -1) {}

  void add(std::size_t at) {
    if (known_[at] < 0) {
      known_[at] = static_cast<std::int64_t>(batch_.places.size());
      batch_.places.push_back(static_cast<std::int64_t>(at));
    }
    batch_.place_of.push_back(known_[at]);
  }

 private:
  TokenBatch& batch_;
  std::vector<std::int64_t> known_;  // [ids] into places
};

}  // namespace

TokenBatch make_batch(std::span<const TokenSequence> sequences, std::size_t row_tokens) {
  const Forest forest = grow_forest(sequences, false);
  TokenBatch batch;
  const auto begins = lay_out(forest.trees, row_tokens, batch);
  Scores scores(batch);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto& [tree, nodes] = forest.paths[i];
    for (std::size_t pos = sequences[i].prompt.size() - 1; pos < nodes.size(); ++pos) {
      scores.add(begins[tree] + nodes[pos]);
    }
    batch.targets.insert(batch.targets.end(), sequences[i].answer.begin(),
                         sequences[i].answer.end());
  }
  return batch;
}

TokenBatch make_judged_batch(std::span<const TokenSequence> sequences) {
  const Forest forest = grow_forest(sequences, true);
  TokenBatch batch;
  const auto begins = lay_out(forest.trees, 0, batch);
  Scores scores(batch);
  for (const auto& [tree, nodes] : forest.paths) scores.add(begins[tree] + nodes.back());
  return batch;
}

}  // namespace weft
