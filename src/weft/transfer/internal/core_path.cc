// How Core stages what lies in a folder or a file.

#include <utility>

#include "weft/base/clock.h"
#include "weft/checkpoint/checkpoint_files.h"
#include "weft/kernels/convert.h"
#include "weft/transfer/internal/core.h"

namespace weft::internal {
namespace {}  // namespace

bool Core::try_path(const std::string& owner, const std::string& path, const Done<void>& done) {
  const auto opening = [&]() -> Result<Opening> {
    const std::lock_guard lock(mutex_);
    WEFT_TRY(const Opening answer, machine_.open_path(owner, path, now()));
    if (answer.epoch == 0) return answer;
    path_waiting_.push_back(done);
    if (!answer.resumed) WEFT_TRY_VOID(machine_.hold(answer.epoch, now()));
    return answer;
  }();
  follow_up(opening);
  if (!opening) return done(opening.error()), true;
  if (opening->epoch == 0) return false;
  if (!opening->resumed) run_path(owner, opening->epoch, path);
  return true;
}

void Core::run_path(const std::string& owner, Epoch epoch, const std::string& path) {
  post([self = shared_from_this(), owner, epoch, path] {
    auto staged = self->blocking_stage_path(owner, epoch, path);
    if (!staged) self->fail(epoch, staged.error());
    std::vector<Done<void>> waiting;
    {
      const std::lock_guard lock(self->mutex_);
      self->machine_.release(epoch, now());
      waiting.swap(self->path_waiting_);
    }
    for (const Done<void>& waiter : waiting) waiter(staged);
  });
}

Result<void> Core::blocking_stage_path(const std::string& owner, Epoch epoch,
                                       const std::filesystem::path& path) {
  const Instant start = now();
  WEFT_TRY(const CheckpointFiles files, CheckpointFiles::blocking_open(path));
  std::vector<TensorSpec> specs;
  for (const auto& entry : files.tensors()) specs.push_back(entry.spec);
  auto planned = plan_body(epoch, std::move(specs));
  if (!planned) return std::move(planned).error().with_context(path.string());
  WEFT_TRY(const auto upload, [&] {
    const std::lock_guard lock(mutex_);
    return upload_of(epoch);
  }());
  std::vector<std::byte> scratch;
  for (std::size_t i = 0; i < files.tensors().size(); ++i) {
    WEFT_TRY_VOID(blocking_stage_tensor(*upload, i, scratch, [&](std::span<std::byte> out) {
      return files.blocking_read(files.tensors()[i], out);
    }));
  }
  Result<void> sealed;
  blocking_seal(owner, epoch, [&](const Result<SealedVersion>& version) {
    if (!version) sealed = Error(version.error()).with_context(path.string());
  });
  const std::lock_guard lock(mutex_);
  metrics_.add(UpdateStage::kStage, std::chrono::duration<double>(now() - start).count());
  return sealed;
}

Result<void> Core::blocking_stage_tensor(
    Upload& upload, std::size_t index, std::vector<std::byte>& scratch,
    const std::function<Result<void>(std::span<std::byte>)>& read) {
  Staging& staging = *upload.staging;
  const PlannedTensor& tensor = staging.plan.tensors[index];
  const auto size = static_cast<std::size_t>(staging.plan.sizes_bytes[index]);
  const bool direct = tensor.target && !tensor.convert;
  if (!direct) scratch.resize(size);
  std::vector<BlockClaim> claims;
  {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t block = 0; block < block_count(size); ++block) {
      WEFT_TRY(claims.emplace_back(),
               machine_.claim(staging, {index, block}, FrameForm::kWhole, 0, now()));
    }
  }
  const auto bytes = direct ? memory_of(upload, index) : std::span(scratch).first(size);
  const auto result = read(bytes);
  std::vector<Digest> digests;
  if (result) digests = hash_blocks(bytes);
  if (result && tensor.convert) {
    kernels::convert(bytes, tensor.spec.dtype, memory_of(upload, index),
                     layout_->tensors()[*tensor.target].dtype);
  }
  for (const BlockClaim& claim : claims) {
    if (!result) {
      give_up(upload, claim);
    } else if (auto settled = settle(upload, claim, digests[claim.place.block], std::nullopt, {});
               !settled) {
      return settled;
    }
  }
  return result;
}

}  // namespace weft::internal
