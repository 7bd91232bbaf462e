#pragma once
// Source: who holds versions and gives their bytes: a receiver, a store, or a cache in front of
// one.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/sim/internal/content.h"
#include "weft/sim/internal/network.h"

namespace weft::sim {

class Source : public Node {
 public:
  using Node::Node;

  // The manifest and the values of all blocks.
  virtual Result<std::shared_ptr<const VersionContent>> content_of(const std::string& id) = 0;
  // The bytes of some places of a version, each a piece.
  virtual Result<std::shared_ptr<Download>> open_download(const std::string& id,
                                                          std::vector<std::size_t> places) = 0;
};

// Cache: keeps what passes through it under its name, for ever. It knows nothing of digests: what
// came wrong or only in part may be what it keeps, and one version's data may go by another's name.
class Cache : public Source {
 public:
  Cache(Simulation& simulation_, Network& network, Source& origin, std::string name_)
      : Source(simulation_, std::move(name_)),
        network_(network),
        origin_(origin),
        mixes_up_(simulation_.random.chance(50) ? 0u : 20u) {}

  Result<std::shared_ptr<const VersionContent>> content_of(const std::string& id) override;
  Result<std::shared_ptr<Download>> open_download(const std::string& id,
                                                  std::vector<std::size_t> places) override;

 protected:
  void on_crash() override {}
  void on_start() override {}

 private:
  using Key = std::pair<std::string, std::vector<std::size_t>>;
  using Body = std::vector<std::vector<std::uint8_t>>;
  class Kept;
  class Passing;

  Network& network_;
  Source& origin_;
  const unsigned mixes_up_;  // percent of versions
  std::map<std::string, std::shared_ptr<const VersionContent>> contents_;
  std::map<std::string, std::string> mixed_up_;  // whose data goes by the name of whom
  std::map<Key, Body> bodies_;
};

}  // namespace weft::sim
