#include "weft/app/diff.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "weft/base/wording.h"
#include "weft/transfer/delta_applier.h"
#include "weft/transfer/delta_file.h"
#include "weft/transfer/delta_object.h"
#include "weft/transfer/delta_stats.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/version_blocks.h"

namespace weft {
namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

unsigned threads_of(unsigned asked) {
  return asked != 0 ? asked : std::max(1u, std::thread::hardware_concurrency());
}

// A folder or file that is open, and the version in it.
struct LocalVersion {
  std::unique_ptr<TensorSource> source;
  SourceVersion version;
};

Result<LocalVersion> blocking_open_version(const std::string& path, unsigned threads) {
  WEFT_TRY(auto source, blocking_open_source(path));
  WEFT_TRY(SourceVersion version, SourceVersion::blocking_make(*source, threads));
  return LocalVersion{std::move(source), std::move(version)};
}

std::uint64_t total_bytes(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < entry_count(manifest); ++i) bytes += entry_size_bytes(manifest, i);
  return bytes;
}

// --- diff

double share_of(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

json::object stats_object(const DeltaEntryStats& stats) {
  const DeltaCosts& bytes = stats.bytes;
  return {{"elements", stats.elements},
          {"changed", stats.changed},
          {"share", share_of(stats.changed, stats.elements)},
          {"bytes_per_changed", share_of(bytes.delta, stats.changed)},
          {"bytes", json::object{{"identity", bytes.identity},
                                 {"zstd", bytes.zstd},
                                 {"xor_zstd", bytes.xor_zstd},
                                 {"sparse", bytes.sparse},
                                 {"delta", bytes.delta}}}};
}

json::object stats_json(const Manifest& manifest, const std::vector<DeltaEntryStats>& entries,
                        const DeltaEntryStats& total) {
  json::array tensors, files;
  for (const DeltaEntryStats& stats : entries) {
    json::object line = stats_object(stats);
    line["name"] = entry_name(manifest, stats.entry);
    if (stats.entry < manifest.tensors.size()) {
      line["dtype"] = dtype_name(manifest.tensors[stats.entry].spec.dtype);
      tensors.push_back(std::move(line));
    } else {
      files.push_back(std::move(line));
    }
  }
  return {
      {"tensors", std::move(tensors)}, {"files", std::move(files)}, {"total", stats_object(total)}};
}

void print_stats_line(const DeltaEntryStats& stats, std::string_view name) {
  constexpr double kPercent = 100;
  const DeltaCosts& bytes = stats.bytes;
  fmt::print("{:9.4f} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9.3f}  {}\n",
             kPercent * share_of(stats.changed, stats.elements), stats.changed,
             bytes_text(bytes.identity), bytes_text(bytes.zstd), bytes_text(bytes.xor_zstd),
             bytes_text(bytes.sparse), bytes_text(bytes.delta),
             share_of(bytes.delta, stats.changed), printable(name));
}

// Entries that do not change are in the total alone.
void print_stats(const Manifest& manifest, const std::vector<DeltaEntryStats>& entries,
                 const DeltaEntryStats& total) {
  fmt::print("{:>9} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "changed %", "elements",
             "identity", "zstd", "XOR+zstd", "sparse", "delta", "B/element");
  for (const DeltaEntryStats& stats : entries) {
    if (stats.changed > 0) print_stats_line(stats, entry_name(manifest, stats.entry));
  }
  print_stats_line(total, "total");
}

struct Diff {
  std::string base, id;
  Manifest manifest;  // the target's
  std::optional<DeltaFileReport> written;
  std::vector<DeltaEntryStats> stats;  // where they were asked for
};

Result<Diff> blocking_diff(const DiffConfig& config, ProgressLine& line) {
  const unsigned threads = threads_of(config.threads);
  WEFT_TRY(const LocalVersion base, blocking_open_version(config.base, threads));
  WEFT_TRY(const LocalVersion target, blocking_open_version(config.target, threads));
  const auto progress = [&line](std::uint64_t done, std::uint64_t total) {
    line.set(0, done, total);
  };
  const VersionContent& content = target.version.content();
  Diff diff{base.version.content().id, content.id, content.manifest, std::nullopt, {}};
  if (!config.file.empty()) {
    DeltaMakeOptions options;
    options.threads = threads;
    options.progress = progress;
    WEFT_TRY(diff.written,
             blocking_write_delta_file(config.file, base.version, target.version, options));
  }
  if (config.stats) {
    WEFT_TRY(diff.stats, blocking_delta_stats(base.version, target.version, threads, progress));
  }
  return diff;
}

void print_diff(const DiffConfig& config, const Diff& diff, double seconds) {
  DeltaEntryStats total;
  for (const DeltaEntryStats& stats : diff.stats) total += stats;
  if (config.client.json) {
    json::object body{
        {"base", diff.base}, {"id", diff.id}, {"total_bytes", total_bytes(diff.manifest)}};
    if (diff.written) {
      body["file"] = config.file;
      body["file_bytes"] = diff.written->file_bytes;
      body["index_bytes"] = diff.written->index_bytes;
      body["payload_bytes"] = diff.written->payload_bytes;
      body["changed_blocks"] = diff.written->blocks;
    }
    if (config.stats) body["stats"] = stats_json(diff.manifest, diff.stats, total);
    body["seconds"] = seconds;
    fmt::print("{}\n", json::serialize(body));
    return;
  }
  if (config.stats) print_stats(diff.manifest, diff.stats, total);
  if (!diff.written) return;
  fmt::print("{}  {} from {}  {} for {}, {:.2f} s\n", config.file, diff.id, diff.base,
             bytes_text(diff.written->file_bytes), bytes_text(total_bytes(diff.manifest)), seconds);
}

// --- apply

struct Applied {
  std::string base, id;
  std::uint64_t total_bytes = 0, payload_bytes = 0;
};

Result<Applied> blocking_apply(const ApplyConfig& config, ProgressLine& line) {
  const unsigned threads = threads_of(config.threads);
  WEFT_TRY(const DeltaFile file, DeltaFile::blocking_open(config.file));
  WEFT_TRY(const LocalVersion base, blocking_open_version(config.base, threads));
  DeltaStep step;
  WEFT_TRY(step.target, delta_target(base.version.content(), file.manifest(), file.index()));
  step.index = &file.index();
  step.blocking_read = [&file](std::size_t row, std::span<std::byte> scratch) {
    return file.blocking_read_payload(row, scratch);
  };
  DeltaApplyOptions options;
  options.threads = threads;
  options.progress = [&line](std::uint64_t done, std::uint64_t total) { line.set(0, done, total); };
  FolderTarget target(
      config.folder, FolderTarget::kShardBytes,
      config.force ? FolderTarget::Existing::kReplace : FolderTarget::Existing::kRefuse);
  const VersionContent& content = *step.target;
  const auto prepared = target.blocking_prepare(content.id, content.manifest, content.blocks);
  auto done = prepared ? blocking_apply_deltas(base.version, {&step, 1}, target, {}, options)
                       : Result<void>(prepared.error());
  if (done) done = target.blocking_finish();
  if (!done) {
    target.blocking_discard();
    return done.error();
  }
  return Applied{base.version.content().id, step.target->id, total_bytes(file.manifest()),
                 delta_payload_bytes(file.index())};
}

}  // namespace

int blocking_run_diff(const DiffConfig& config) {
  const auto start = Clock::now();
  ProgressLine line(config.client, 1);
  const auto diff = blocking_diff(config, line);
  line.clear();
  if (!diff) return report_error("diff", diff.error(), config.client);
  print_diff(config, *diff, seconds_since(start));
  return 0;
}

int blocking_run_apply(const ApplyConfig& config) {
  const auto start = Clock::now();
  ProgressLine line(config.client, 1);
  const auto applied = blocking_apply(config, line);
  line.clear();
  if (!applied) return report_error("apply", applied.error(), config.client);
  const double seconds = seconds_since(start);
  if (config.client.json) {
    fmt::print("{}\n", json::serialize(json::object{{"base", applied->base},
                                                    {"id", applied->id},
                                                    {"folder", config.folder},
                                                    {"total_bytes", applied->total_bytes},
                                                    {"payload_bytes", applied->payload_bytes},
                                                    {"seconds", seconds}}));
  } else {
    fmt::print("{}  {}  {} from {}, {:.2f} s\n", config.folder, applied->id,
               bytes_text(applied->total_bytes), bytes_text(applied->payload_bytes), seconds);
  }
  return 0;
}

}  // namespace weft
