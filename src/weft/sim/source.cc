#include "weft/sim/internal/source.h"

#include <iterator>

namespace weft::sim {

class Cache::Kept : public Download {
 public:
  explicit Kept(Body body) : body_(std::move(body)) {}
  std::size_t pieces() const override { return body_.size(); }
  Result<std::vector<std::uint8_t>> read(std::size_t index) override { return body_[index]; }

 private:
  const Body body_;
};

// On its way from the origin, and kept when it is whole.
class Cache::Passing : public Download {
 public:
  Passing(Cache& cache, Key key, std::shared_ptr<Download> from)
      : cache_(cache), key_(std::move(key)), from_(std::move(from)) {}

  std::size_t pieces() const override { return from_->pieces(); }
  Result<std::vector<std::uint8_t>> read(std::size_t index) override {
    if (!cache_.up()) return Error(ErrorCode::kDisconnected, "the cache is gone");
    auto piece = from_->read(index);
    if (!piece) return piece;
    Random& random = cache_.simulation.random;
    if (random.chance(cache_.network_.faults.corrupted)) (*piece)[0] ^= 1;
    body_.push_back(*piece);
    const bool torn = random.chance(cache_.network_.faults.cut);
    if (torn || body_.size() == from_->pieces()) cache_.bodies_.emplace(key_, body_);
    return piece;
  }

 private:
  Cache& cache_;
  const Key key_;
  const std::shared_ptr<Download> from_;
  Body body_;
};

Result<std::shared_ptr<const VersionContent>> Cache::content_of(const std::string& id) {
  if (const auto kept = contents_.find(id); kept != contents_.end()) return kept->second;
  if (!origin_.up()) return Error(ErrorCode::kDisconnected, "the origin is gone");
  WEFT_TRY(auto content, origin_.content_of(id));
  Random& random = simulation.random;
  if (!contents_.empty() && random.chance(mixes_up_)) {
    // Well-formed, and of another version: only the manifest says that it is wrong.
    const auto other =
        std::next(contents_.begin(), static_cast<std::ptrdiff_t>(random.below(contents_.size())));
    VersionContent mixed = *content;
    mixed.blocks = other->second->blocks;
    const auto whose = mixed_up_.find(other->first);
    mixed_up_[id] = whose == mixed_up_.end() ? other->first : whose->second;
    content = std::make_shared<const VersionContent>(std::move(mixed));
  }
  contents_.emplace(id, content);
  return content;
}

Result<std::shared_ptr<Download>> Cache::open_download(const std::string& id,
                                                       std::vector<std::size_t> places) {
  const auto whose = mixed_up_.find(id);
  const std::string& data = whose == mixed_up_.end() ? id : whose->second;
  Key key(data, places);
  if (const auto kept = bodies_.find(key); kept != bodies_.end()) {
    return std::shared_ptr<Download>(std::make_shared<Kept>(kept->second));
  }
  if (!origin_.up()) return Error(ErrorCode::kDisconnected, "the origin is gone");
  WEFT_TRY(auto from, origin_.open_download(data, std::move(places)));
  return std::shared_ptr<Download>(
      std::make_shared<Passing>(*this, std::move(key), std::move(from)));
}

}  // namespace weft::sim
