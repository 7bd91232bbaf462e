#include "weft/transfer/version_blocks.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "weft/base/guarded.h"

namespace weft {
namespace {

// The numbers of `items`, by name. Errors: kInvalidArgument for one that is there twice.
template <typename Item, typename Name>
Result<std::vector<std::size_t>> by_name(const std::vector<Item>& items, Name name) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return name(items[a]) < name(items[b]); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (name(items[order[i - 1]]) != name(items[order[i]])) continue;
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("`{}` is there twice", name(items[order[i]])));
  }
  return order;
}

class DataBlocks final : public VersionBlocks {
 public:
  using Data = std::shared_ptr<const VersionData>;

  DataBlocks(std::shared_ptr<const VersionContent> content, const Data& data)
      : content_(std::move(content)),
        held_(std::make_shared<Guarded<Data>>(data)),
        guard_(data->on_revoke(
            [held = held_] { held->with([](Data& it) { return std::exchange(it, nullptr); }); })) {}

  const VersionContent& content() const override { return *content_; }
  Result<std::span<const std::byte>> blocking_read(const BlockPlace& place,
                                                   std::span<std::byte> scratch) const override {
    const Data data = held_->with([](const Data& it) { return it; });
    if (!data) {
      return Error(ErrorCode::kConflict, fmt::format("{} is being overwritten", content_->id));
    }
    std::vector<http::BodyPart> parts;
    WEFT_TRY_VOID(data->append(place.entry, place.block * kBlockBytes, scratch.size(), parts));
    auto out = scratch;
    for (const http::BodyPart& part : parts) {
      const auto into = out.first(static_cast<std::size_t>(part.size()));
      if (part.file) {
        WEFT_TRY_VOID(part.file->blocking_read_at(part.offset_bytes, into));
      } else {
        std::ranges::copy(part.bytes, into.begin());
      }
      out = out.subspan(into.size());
    }
    return std::span<const std::byte>(scratch);
  }

 private:
  const std::shared_ptr<const VersionContent> content_;
  const std::shared_ptr<Guarded<Data>> held_;
  const std::shared_ptr<void> guard_;
};

}  // namespace

Result<SourceVersion> SourceVersion::blocking_make(const TensorSource& source, unsigned threads) {
  WEFT_TRY(VersionDigests hashed, blocking_hash_source(source, threads));
  SourceVersion version(source);
  Manifest manifest;
  VersionDigests blocks;
  const auto take = [&](std::size_t entry) {
    version.entries_.push_back(entry);
    blocks.push_back(std::move(hashed[entry]));
    return merge_block_digests(blocks.back());
  };
  const auto& tensors = source.tensors();
  WEFT_TRY(const auto tensor_order, by_name(tensors, [](const TensorSpec& t) { return t.name; }));
  for (const std::size_t i : tensor_order) manifest.tensors.push_back({tensors[i], take(i)});
  const auto& files = source.files();
  WEFT_TRY(const auto file_order, by_name(files, [](const OfferedFile& f) { return f.name; }));
  for (const std::size_t i : file_order) {
    manifest.files.push_back({files[i].name, files[i].size_bytes, take(tensors.size() + i)});
  }
  version.content_ = make_version_content(std::move(manifest), std::move(blocks));
  return version;
}

Result<std::span<const std::byte>> SourceVersion::blocking_read(
    const BlockPlace& place, std::span<std::byte> scratch) const {
  return source_->blocking_read(entries_.at(place.entry), place.block * kBlockBytes, scratch);
}

Result<std::unique_ptr<VersionBlocks>> open_blocks(VersionSource& source, const std::string& id) {
  WEFT_TRY(auto content, source.content(id));
  WEFT_TRY(const auto data, source.open_own(id));
  return std::unique_ptr<VersionBlocks>(std::make_unique<DataBlocks>(std::move(content), data));
}

}  // namespace weft
