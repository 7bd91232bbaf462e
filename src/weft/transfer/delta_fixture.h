#pragma once
// Two versions and the delta between them, for tests.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/transfer/delta_applier.h"
#include "weft/transfer/delta_maker.h"
#include "weft/transfer/delta_object.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/version_blocks.h"

namespace weft {

using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

struct Model {
  std::vector<TensorSpec> specs;
  std::vector<Bytes> data;
  std::map<std::string, std::string> files;

  void add(TensorSpec spec, unsigned seed) {
    Bytes bytes(static_cast<std::size_t>(tensor_size_bytes(spec).value()));
    std::uint32_t state = seed;
    for (std::byte& b : bytes) {
      state = state * 1664525 + 1013904223;
      b = static_cast<std::byte>(state >> 24 & 0x3F);
    }
    specs.push_back(std::move(spec));
    data.push_back(std::move(bytes));
  }
  Bytes& of(std::string_view name) {
    const auto found = std::ranges::find(specs, name, &TensorSpec::name);
    return data[static_cast<std::size_t>(found - specs.begin())];
  }
};

// A model and its version.
class Version {
 public:
  explicit Version(Model model) : model_(std::move(model)) {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < model_.specs.size(); ++i) {
      views.push_back({model_.specs[i], model_.data[i]});
    }
    source_ = std::make_unique<MemorySource>(MemorySource::create(views, model_.files).value());
    blocks_ = std::make_unique<SourceVersion>(SourceVersion::blocking_make(*source_, 2).value());
  }

  const VersionBlocks& blocks() const { return *blocks_; }
  const VersionContent& content() const { return blocks_->content(); }
  const std::shared_ptr<const VersionContent>& shared() const { return blocks_->shared_content(); }
  const std::string& id() const { return content().id; }
  Model model() const { return model_; }

 private:
  Model model_;
  std::unique_ptr<MemorySource> source_;
  std::unique_ptr<SourceVersion> blocks_;
};

inline constexpr std::uint64_t kLong = kBlockBytes / 2 + 1000;  // of BF16: two blocks

inline Model base_model() {
  Model model;
  model.add({"long", DType::kBF16, {kLong}}, 1);
  model.add({"empty", DType::kF32, {0, 3}}, 2);
  model.add({"same", DType::kF32, {50}}, 3);
  model.add({"bytes", DType::kU8, {700}}, 4);
  model.add({"gone", DType::kF32, {9}}, 5);
  model.add({"reshaped", DType::kF32, {4, 5}}, 6);
  model.files = {{"config.json", "{\"a\":1}"}, {"vocab.txt", "abc"}};
  return model;
}

// Most of what may change does.
inline Model next_model() {
  Model model = base_model();
  for (std::size_t i = 0; i < kLong; i += 5000) model.of("long")[2 * i] ^= std::byte{1};
  model.of("bytes")[13] = std::byte{99};
  std::erase_if(model.specs, [](const TensorSpec& spec) { return spec.name == "gone"; });
  model.data.erase(model.data.begin() + 4);
  model.specs[4].shape = {5, 4};
  model.add({"added", DType::kBF16, {300}}, 7);
  model.files["config.json"] = "{\"a\":2}";
  model.files["vocab.txt"] = "abcd";
  return model;
}

// A small one, for what is tried at every byte.
inline Model tiny_model(unsigned seed) {
  Model model;
  model.add({"w", DType::kBF16, {40}}, 1);
  model.add({"x", DType::kF32, {3}}, 2);
  model.of("w")[2 * seed] ^= std::byte{1};
  return model;
}

struct Delta {
  DeltaIndex index;
  std::vector<Bytes> payloads;
};

inline Result<Delta> made(const VersionBlocks& base, const VersionBlocks& target,
                          const DeltaMakeOptions& options = {}) {
  Delta delta;
  const DeltaPayloadSink sink = [&](std::size_t, View payload) -> Result<void> {
    delta.payloads.emplace_back(payload.begin(), payload.end());
    return {};
  };
  WEFT_TRY(delta.index, blocking_make_delta(base, target, sink, options));
  return delta;
}
inline Delta delta_of(const Version& base, const Version& target) {
  return made(base.blocks(), target.blocks()).value();
}

inline DeltaStep step_of(const Delta& delta, std::shared_ptr<const VersionContent> target) {
  return {std::move(target), &delta.index,
          [&delta](std::size_t row, std::span<std::byte>) { return View(delta.payloads[row]); }};
}

inline std::map<std::string, Bytes> by_name(const Model& model) {
  std::map<std::string, Bytes> all;
  for (std::size_t i = 0; i < model.specs.size(); ++i) all[model.specs[i].name] = model.data[i];
  for (const auto& [name, text] : model.files) {
    const auto bytes = std::as_bytes(std::span(text));
    all[name].assign(bytes.begin(), bytes.end());
  }
  return all;
}

// Into memory; it says whether it was finished.
class Sink final : public PullTarget {
 public:
  Result<Held> blocking_prepare(const std::string& id, const Manifest& manifest,
                                const VersionDigests& digests) override {
    manifest_ = manifest;
    return memory_.blocking_prepare(id, manifest, digests);
  }
  std::span<std::byte> place(std::size_t entry, std::uint64_t offset_bytes,
                             std::span<std::byte> scratch) override {
    return memory_.place(entry, offset_bytes, scratch);
  }
  Result<void> blocking_write(std::size_t, std::uint64_t, View) override { return {}; }
  Result<View> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                             std::span<std::byte> scratch) const override {
    return memory_.blocking_read(entry, offset_bytes, scratch);
  }
  Result<void> blocking_finish() override {
    finished = true;
    return {};
  }

  std::map<std::string, Bytes> by_name() const {
    std::map<std::string, Bytes> all;
    for (std::size_t i = 0; i < entry_count(manifest_); ++i) {
      Bytes scratch(static_cast<std::size_t>(entry_size_bytes(manifest_, i)));
      const auto bytes = memory_.blocking_read(i, 0, scratch).value();
      all[entry_name(manifest_, i)].assign(bytes.begin(), bytes.end());
    }
    return all;
  }

  bool finished = false;

 private:
  MemoryTarget memory_;
  Manifest manifest_;
};

// A version some of whose bytes have gone wrong since it was hashed.
class Damaged final : public VersionBlocks {
 public:
  Damaged(const VersionBlocks& right, std::string name, std::uint64_t block)
      : right_(right), name_(std::move(name)), block_(block) {}

  const VersionContent& content() const override { return right_.content(); }
  Result<View> blocking_read(const BlockPlace& place, std::span<std::byte> scratch) const override {
    WEFT_TRY(const View bytes, right_.blocking_read(place, scratch));
    std::ranges::copy(bytes, scratch.begin());
    if (entry_name(content().manifest, place.entry) == name_ && place.block == block_) {
      scratch[0] ^= std::byte{1};
    }
    return View(scratch);
  }

 private:
  const VersionBlocks& right_;
  const std::string name_;
  const std::uint64_t block_;
};

inline Result<void> apply_to(PullTarget& sink, const VersionBlocks& base,
                             std::span<const DeltaStep> steps, unsigned threads = 1) {
  const VersionContent& target = *steps.back().target;
  WEFT_TRY_VOID(sink.blocking_prepare(target.id, target.manifest, target.blocks));
  WEFT_TRY_VOID(blocking_apply_deltas(base, steps, sink, {}, {.threads = threads}));
  return sink.blocking_finish();
}

inline std::string message_of(const auto& result) {
  return result ? "no error" : result.error().message();
}

}  // namespace weft
