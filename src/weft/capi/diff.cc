// weft_diff() and weft_apply().

#include <fmt/core.h>

#include "weft/capi/internal/handles.h"
#include "weft/transfer/delta_applier.h"
#include "weft/transfer/delta_file.h"
#include "weft/transfer/delta_object.h"
#include "weft/transfer/pull_targets.h"

namespace weft::capi {
namespace {

unsigned threads_of(const weft_diff_options& known) {
  return known.threads > 0 ? known.threads : kThreads;
}

struct Opened {
  std::unique_ptr<TensorSource> source;
  SourceVersion version;
};

Result<Opened> blocking_open_version(const weft_source* given, const char* what, unsigned threads) {
  WEFT_TRY_VOID(check_given(given, what));
  WEFT_TRY(const weft_source known, read_struct(given, what));
  WEFT_TRY(auto source, blocking_open(known));
  WEFT_TRY(SourceVersion version, SourceVersion::blocking_make(*source, threads));
  return Opened{std::move(source), std::move(version)};
}

weft_diff_report report_of(const VersionContent& base, const VersionContent& target,
                           std::uint64_t file_bytes, std::size_t blocks) {
  weft_diff_report out{};
  copy_id(base.id, out.base_id);
  copy_id(target.id, out.id);
  for (std::size_t i = 0; i < entry_count(target.manifest); ++i) {
    out.total_bytes += entry_size_bytes(target.manifest, i);
  }
  out.file_bytes = file_bytes;
  out.changed_blocks = blocks;
  return out;
}

Result<void> blocking_diff(const weft_source* base, const weft_source* target, const char* file,
                           const weft_diff_options* given, weft_diff_report* report) {
  WEFT_TRY_VOID(check_given(file, "file"));
  WEFT_TRY(const weft_diff_options known, read_struct(given, "options"));
  WEFT_TRY(const Opened from, blocking_open_version(base, "base", threads_of(known)));
  WEFT_TRY(const Opened to, blocking_open_version(target, "target", threads_of(known)));
  DeltaMakeOptions options;
  options.threads = threads_of(known);
  options.progress = progress_of(known);
  WEFT_TRY(const DeltaFileReport written,
           blocking_write_delta_file(file, from.version, to.version, options));
  return write_struct(
      report,
      report_of(from.version.content(), to.version.content(), written.file_bytes, written.blocks),
      "report");
}

// Into `target`; returns what it is then.
Result<std::shared_ptr<const VersionContent>> blocking_apply(const weft_source* base,
                                                             const char* path,
                                                             const weft_diff_options* given,
                                                             PullTarget& target,
                                                             weft_diff_report* report) {
  WEFT_TRY_VOID(check_given(path, "file"));
  WEFT_TRY(const weft_diff_options known, read_struct(given, "options"));
  WEFT_TRY(const DeltaFile file, DeltaFile::blocking_open(path));
  WEFT_TRY(const Opened from, blocking_open_version(base, "base", threads_of(known)));
  DeltaStep step;
  WEFT_TRY(step.target, delta_target(from.version.content(), file.manifest(), file.index()));
  step.index = &file.index();
  step.blocking_read = [&file](std::size_t row, std::span<std::byte> scratch) {
    return file.blocking_read_payload(row, scratch);
  };
  const VersionContent& content = *step.target;
  WEFT_TRY_VOID(target.blocking_prepare(content.id, content.manifest, content.blocks));
  WEFT_TRY_VOID(blocking_apply_deltas(from.version, {&step, 1}, target, {},
                                      {threads_of(known), progress_of(known)}));
  WEFT_TRY_VOID(target.blocking_finish());
  const auto written = report_of(from.version.content(), content, delta_payload_bytes(file.index()),
                                 file.index().blocks.size());
  WEFT_TRY_VOID(write_struct(report, written, "report"));
  return step.target;
}

}  // namespace
}  // namespace weft::capi

extern "C" {

using weft::Result;
namespace capi = weft::capi;

weft_code weft_diff(const weft_source* base, const weft_source* target, const char* file,
                    const weft_diff_options* options, weft_diff_report* report) {
  return capi::guarded([&] { return capi::blocking_diff(base, target, file, options, report); });
}

weft_code weft_apply(const weft_source* base, const char* file, const weft_diff_options* options,
                     weft_weights** weights, weft_diff_report* report) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(weights, "weights"));
    weft::MemoryTarget target;
    WEFT_TRY(const auto content, capi::blocking_apply(base, file, options, target, report));
    *weights = new weft_weights{std::make_shared<capi::SetLease>(target.weights()),
                                std::make_shared<const capi::Files>(target.files()), content->id,
                                "", content};
    return {};
  });
}

weft_code weft_apply_folder(const weft_source* base, const char* file, const char* folder,
                            const weft_diff_options* options, weft_diff_report* report) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(folder, "folder"));
    weft::FolderTarget target(folder);
    const auto done = capi::blocking_apply(base, file, options, target, report);
    if (done) return {};
    target.blocking_discard();
    return done.error();
  });
}

}  // extern "C"
