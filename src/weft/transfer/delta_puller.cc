#include "weft/transfer/delta_puller.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/clock.h"
#include "weft/format/json.h"
#include "weft/transfer/delta_object.h"
#include "weft/transfer/internal/answers.h"
#include "weft/transfer/internal/delta_packs.h"

namespace weft {
namespace {

namespace json = boost::json;

// A longer chain costs more than it saves, and a source could send us around for ever.
constexpr std::size_t kMaxSteps = 64;

// The versions that a plan leads through, the last of them `id`; empty where it does not begin with
// a delta from `base`. Errors: kCorrupt.
Result<std::vector<std::string>> parse_plan(std::string_view body, const std::string& base,
                                            const std::string& id) {
  const Error no_plan(ErrorCode::kCorrupt, "the plan is none");
  WEFT_TRY(const json::value value, parse_json(body));
  const json::object* const root = value.if_object();
  const json::value* const steps = root == nullptr ? nullptr : root->if_contains("steps");
  if (steps == nullptr || !steps->is_array() || steps->get_array().size() > kMaxSteps) {
    return no_plan;
  }
  std::vector<std::string> ids;
  for (const json::value& step : steps->get_array()) {
    if (!step.is_object()) return no_plan;
    const std::string from = string_member(step.get_object(), "base");
    if (ids.empty() && from != base) return ids;  // it begins with a version in full
    if (from != (ids.empty() ? base : ids.back())) return no_plan;
    ids.push_back(string_member(step.get_object(), "id"));
    if (!try_parse_digest(ids.back())) return no_plan;
  }
  if (!ids.empty() && ids.back() != id) return no_plan;
  return ids;
}

class Puller {
 public:
  Puller(http::Client& source, const VersionBlocks& base, const DeltaPullOptions& options)
      : base_(base), options_(options), fetcher_(source, options.retries, options.first_wait) {}

  // The steps to `id`; none where another way is cheaper.
  Result<std::vector<DeltaStep>> blocking_load(const std::string& id) {
    const std::string& from = base_.content().id;
    std::vector<DeltaStep> steps;
    const auto plan = fetcher_.blocking_get(
        fmt::format("/versions/{}/plan?have={}&wait={}", id, from, options_.wait.count()));
    // A source of before there were deltas has no such route.
    if (!plan && plan.error().code() == ErrorCode::kNotFound) return steps;
    if (!plan) return plan.error();
    WEFT_TRY(const std::vector<std::string> ids, parse_plan(*plan, from, id));
    const VersionContent* before = &base_.content();
    for (const std::string& to : ids) {
      WEFT_TRY(DeltaStep step, blocking_load_step(*before, to));
      before = step.target.get();
      steps.push_back(std::move(step));
    }
    return steps;
  }

  std::uint64_t fetched_bytes() const {
    std::uint64_t bytes = index_bytes_;
    for (const auto& delta : deltas_) bytes += delta->packs.fetched_bytes();
    return bytes;
  }

 private:
  struct Delta {
    Delta(DeltaIndex index_, internal::DeltaFetcher& fetcher, std::string path)
        : index(std::move(index_)), packs(fetcher, std::move(path), index) {}
    const DeltaIndex index;
    internal::DeltaPacks packs;
  };

  Result<DeltaStep> blocking_load_step(const VersionContent& base, const std::string& id) {
    WEFT_TRY(const std::string text, fetcher_.blocking_get("/versions/" + id + "/manifest"));
    WEFT_TRY(Manifest manifest, parse_manifest(text));
    std::string path = fmt::format("/versions/{}/deltas/{}", id, base.id);
    WEFT_TRY(const std::string bytes, fetcher_.blocking_get(path));
    index_bytes_ += bytes.size();
    WEFT_TRY(DeltaIndex index, parse_delta_index(std::as_bytes(std::span(bytes))));
    DeltaStep step;
    WEFT_TRY(step.target, delta_target(base, std::move(manifest), index));
    if (step.target->id != id) {
      return Error(ErrorCode::kCorrupt, fmt::format("the manifest of {} is another's", id));
    }
    deltas_.push_back(std::make_unique<Delta>(std::move(index), fetcher_, std::move(path)));
    step.index = &deltas_.back()->index;
    step.blocking_read = [&packs = deltas_.back()->packs](std::size_t row,
                                                          std::span<std::byte> scratch) {
      return packs.blocking_read(row, scratch);
    };
    return step;
  }

  const VersionBlocks& base_;
  const DeltaPullOptions& options_;
  internal::DeltaFetcher fetcher_;
  std::uint64_t index_bytes_ = 0;
  std::vector<std::unique_ptr<Delta>> deltas_;
};

// Of the blocks that the base has too.
std::uint64_t held_bytes(const VersionContent& base, const VersionContent& target) {
  const DeltaPair pair(base, target);
  std::uint64_t bytes = 0;
  for (std::size_t entry = 0; entry < target.blocks.size(); ++entry) {
    const std::uint64_t entry_bytes = entry_size_bytes(target.manifest, entry);
    for (std::size_t block = 0; block < target.blocks[entry].size(); ++block) {
      if (!pair.is_changed({entry, block})) bytes += block_length(entry_bytes, block);
    }
  }
  return bytes;
}

}  // namespace

Result<DeltaPull> blocking_pull_deltas(http::Client& source, const std::string& id,
                                       const VersionBlocks& base, PullTarget& target,
                                       const DeltaPullOptions& options) {
  const Instant start = now();
  DeltaPull pull;
  if (base.content().id == id) return pull;
  Puller puller(source, base, options);
  const auto steps = puller.blocking_load(id);
  if (!steps) {
    pull.why_not = steps.error().message();
    return pull;
  }
  if (steps->empty()) return pull;
  const VersionContent& content = *steps->back().target;
  WEFT_TRY(auto held, target.blocking_prepare(id, content.manifest, content.blocks));
  std::sort(held.blocks.begin(), held.blocks.end());
  const auto applied = blocking_apply_deltas(
      base, *steps, target, held.blocks, {options.threads, options.progress, options.patch_sink});
  if (!applied) {
    pull.why_not = applied.error().message();
    return pull;
  }
  WEFT_TRY_VOID(target.blocking_finish());
  PullReport report;
  report.id = id;
  report.manifest = content.manifest;
  report.digests = content.blocks;
  for (std::size_t entry = 0; entry < content.blocks.size(); ++entry) {
    report.total_bytes += entry_size_bytes(content.manifest, entry);
  }
  report.held_bytes = held_bytes(base.content(), content);
  report.fetched_bytes = puller.fetched_bytes();
  report.seconds = seconds_since(start);
  pull.deltas = steps->size();
  pull.report = std::move(report);
  return pull;
}

}  // namespace weft
