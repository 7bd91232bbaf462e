#include "weft/transfer/internal/core.h"

#include <algorithm>
#include <cstring>

#include <fmt/core.h>

#include "weft/base/log.h"
#include "weft/checkpoint/checkpoint_files.h"
#include "weft/kernels/convert.h"
#include "weft/protocol/block_frame.h"
#include "weft/transfer/internal/sha256.h"

namespace weft::internal {
namespace {

Instant now() {
  return std::chrono::steady_clock::now();
}

Error label_too_long(const std::string& label) {
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("the label has {} bytes, at most {}", label.size(), kMaxLabelBytes),
               "label");
}

// The bytes of block `block` of a tensor.
template <typename Byte>
std::span<Byte> block_of(std::span<Byte> tensor, std::uint64_t block) {
  return tensor.subspan(static_cast<std::size_t>(block * kBlockBytes),
                        static_cast<std::size_t>(block_length(tensor.size(), block)));
}

Error outside_grid(const Upload& upload, std::uint64_t tensor, std::uint64_t block) {
  if (tensor >= upload.sizes_bytes.size()) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("the upload has {} tensors, there is no tensor {}",
                             upload.sizes_bytes.size(), tensor));
  }
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} has {} blocks, there is no block {}", upload.plan.tensors[tensor].spec.name,
                  block_count(upload.sizes_bytes[tensor]), block));
}

Result<std::shared_ptr<Upload>> make_upload(Epoch epoch, UploadPlan plan,
                                            std::vector<std::vector<Digest>> announced,
                                            std::shared_ptr<WeightSet> set) {
  std::vector<std::uint64_t> sizes_bytes;
  announced.resize(plan.tensors.size());
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorSpec& spec = plan.tensors[i].spec;
    WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(spec));
    sizes_bytes.push_back(size_bytes);
    if (!announced[i].empty() && announced[i].size() != block_count(size_bytes)) {
      return Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: {} block digests, expected {} ({} bytes in blocks of {})", spec.name,
                      announced[i].size(), block_count(size_bytes), size_bytes, kBlockBytes));
    }
  }
  return std::make_shared<Upload>(epoch, std::move(plan), std::move(sizes_bytes),
                                  std::move(announced), std::move(set));
}

std::shared_ptr<const Content> make_content(Manifest manifest, bool converted,
                                            std::vector<std::vector<Digest>> blocks) {
  std::ranges::sort(manifest.tensors, {}, [](const ManifestTensor& t) { return t.spec.name; });
  return std::make_shared<const Content>(
      Content{manifest_id(manifest), manifest_json(manifest), converted, std::move(blocks)});
}

// The content of an upload whose blocks are all verified. Errors: kInvalidArgument when a tied head
// is not the embedding's twin.
Result<std::shared_ptr<const Content>> content_of(const Upload& upload,
                                                  const WeightLayout& layout) {
  Manifest manifest;
  std::vector<std::vector<Digest>> blocks(layout.tensors().size());
  std::optional<Digest> head;
  std::optional<Digest> embedding;
  for (std::size_t i = 0; i < upload.plan.tensors.size(); ++i) {
    const PlannedTensor& tensor = upload.plan.tensors[i];
    const auto digests = upload.ledger.digests(i);
    const Digest digest = merge_block_digests(digests);
    if (!tensor.target) {
      head = digest;
      continue;
    }
    if (tensor.spec.name == kEmbeddingName) embedding = digest;
    manifest.tensors.push_back({tensor.spec, digest});
    blocks[*tensor.target].assign(digests.begin(), digests.end());
  }
  if (head && head != embedding) {
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "{} differs from {}, to which this model ties it: send equal bytes, or leave it out",
            kHeadName, kEmbeddingName));
  }
  if (upload.plan.converted) blocks.clear();
  return make_content(std::move(manifest), upload.plan.converted, std::move(blocks));
}

}  // namespace

std::shared_ptr<const Content> blocking_hash_content(const WeightSet& set, bool converted) {
  Manifest manifest;
  std::vector<std::vector<Digest>> blocks;
  const auto& specs = set.layout().tensors();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto bytes = set.tensor(i);
    auto& digests = blocks.emplace_back();
    for (std::uint64_t block = 0; block < block_count(bytes.size()); ++block) {
      digests.push_back(block_digest(bytes.size(), block, block_of(bytes, block)));
    }
    manifest.tensors.push_back({specs[i], merge_block_digests(digests)});
  }
  return make_content(std::move(manifest), converted, std::move(blocks));
}

// Writes one block into the staging set as it comes.
class SetWriter final : public BlockWriter {
 public:
  SetWriter(std::shared_ptr<Core> core, std::shared_ptr<Upload> upload, std::uint64_t tensor,
            std::uint64_t block, BlockLedger::Claim found)
      : core_(std::move(core)),
        upload_(std::move(upload)),
        tensor_(tensor),
        block_(block),
        found_(found),
        fill_(core_->make_fill(*upload_, tensor, block, found)) {}
  SetWriter(const SetWriter&) = delete;
  SetWriter& operator=(const SetWriter&) = delete;
  ~SetWriter() override {
    if (settled_ || found_ != BlockLedger::Claim::kYours) return;
    static_cast<void>(core_->settle(*upload_, tensor_, block_, nullptr));
  }

  std::span<std::byte> buffer() override { return fill_.buffer(); }
  Result<void> filled(std::size_t size_bytes) override {
    return fill_.filled(size_bytes), Result<void>();
  }
  std::uint64_t left_bytes() const override { return fill_.left_bytes(); }
  BlockLedger::Claim found() const override { return found_; }
  Result<void> settle(const std::optional<Digest>& expected) override;
  // Takes it as verified though its bytes did not come through filled(): they were copied from a
  // verified block.
  Result<void> settle_copied(const Digest& digest) {
    settled_ = true;
    return core_->settle(*upload_, tensor_, block_, &digest);
  }

 private:
  std::shared_ptr<Core> core_;
  std::shared_ptr<Upload> upload_;
  std::uint64_t tensor_, block_;
  BlockLedger::Claim found_;
  bool settled_ = false;
  BlockFill fill_;
};

Result<void> SetWriter::settle(const std::optional<Digest>& expected) {
  if (found_ != BlockLedger::Claim::kYours) return {};
  const Digest digest = fill_.digest();
  const auto& announced = upload_->announced[tensor_];
  for (const Digest* wanted :
       {expected ? &*expected : nullptr, announced.empty() ? nullptr : &announced[block_]}) {
    if (wanted == nullptr || *wanted == digest) continue;
    return Error(ErrorCode::kCorrupt,
                 fmt::format("{}, block {}: the bytes that came are {}, expected {}",
                             upload_->plan.tensors[tensor_].spec.name, block_, digest_text(digest),
                             digest_text(*wanted)));
  }
  return settle_copied(digest);
}

Core::Core(std::shared_ptr<WeightSet> serving, std::shared_ptr<WeightSet> staging,
           std::shared_ptr<const Content> served, WeightTarget& target, ReceiverOptions options)
    : target_(target),
      options_(options),
      layout_(std::shared_ptr<const WeightLayout>(serving, &serving->layout())),
      machine_(options.lease),
      serving_(std::move(serving)),
      staging_(std::move(staging)),
      served_(std::move(served)) {}

void Core::blocking_shutdown() {
  {
    const std::lock_guard lock(mutex_);
    machine_.shutdown();
  }
  blocking_.blocking_stop();
}

std::shared_ptr<void> Core::add_connection(std::function<void()> close) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = ++last_connection_;
  connections_.emplace(id, std::move(close));
  return {nullptr, [weak = weak_from_this(), id](void*) {
            const auto self = weak.lock();
            if (!self) return;
            const std::lock_guard guard(self->mutex_);
            self->connections_.erase(id);
          }};
}

template <typename T>
Result<T> Core::begun(Result<T> result) {
  if (result || result.error().code() != ErrorCode::kOverloaded) return result;
  std::map<std::uint64_t, std::function<void()>> connections;
  {
    const std::lock_guard lock(mutex_);
    connections = connections_;
  }
  for (const auto& [id, close] : connections) close();
  return result;
}

Result<Epoch> Core::open_body(const std::string& owner) {
  return begun([&]() -> Result<Epoch> {
    const std::lock_guard lock(mutex_);
    WEFT_TRY_VOID(staging_is_free());
    return machine_.open_body(owner, now());
  }());
}

Result<void> Core::plan_body(Epoch epoch, std::vector<TensorSpec> tensors) {
  WEFT_TRY(UploadPlan plan, plan_upload(*layout_, tensors, options_.tied_embeddings));
  const std::lock_guard lock(mutex_);
  WEFT_TRY_VOID(machine_.touch(epoch, now()));
  WEFT_TRY(upload_, make_upload(epoch, std::move(plan), {}, staging_));
  return {};
}

void Core::open_upload(const std::string& owner, UploadOffer offer, Done<UploadProgress> done) {
  // Blocks that are here are copied: not for an I/O thread.
  post([self = shared_from_this(), owner, offer = std::move(offer), done = std::move(done)] {
    done(self->blocking_open_upload(owner, offer));
  });
}

Result<UploadProgress> Core::blocking_open_upload(const std::string& owner, UploadOffer request) {
  if (!request.files.empty() || request.base) {
    return Error(ErrorCode::kUnsupported, "files and bases are not taken here");
  }
  WEFT_TRY(UploadPlan plan, plan_upload(*layout_, request.tensors, options_.tied_embeddings));
  // Its faults, too, are found before anything changes.
  WEFT_TRY(std::shared_ptr<Upload> upload, make_upload(0, plan, request.blocks, nullptr));
  const auto opened = begun([&]() -> Result<UpdateMachine::Opened> {
    const std::lock_guard lock(mutex_);
    WEFT_TRY_VOID(staging_is_free());
    WEFT_TRY(const auto answer,
             machine_.open_upload(owner, request.skeleton, request.replace, now()));
    if (answer.resumed) return answer;
    WEFT_TRY(upload,
             make_upload(answer.epoch, std::move(plan), std::move(request.blocks), staging_));
    upload_ = upload;
    WEFT_TRY_VOID(machine_.hold(answer.epoch, now()));
    return answer;
  }());
  if (!opened) return opened.error();
  if (opened->resumed) return progress(owner, opened->epoch);
  copy_served_blocks(upload);
  const std::lock_guard lock(mutex_);
  machine_.release(upload->epoch, now());
  return progress_of(*upload);
}

// Takes over from the served set what it has of the announced blocks. It cannot be retired
// meanwhile: the seal that comes before every commit is a job of this same thread.
void Core::copy_served_blocks(const std::shared_ptr<Upload>& upload) {
  const auto served_content = served();
  if (served_content->blocks.empty()) return;
  for (std::size_t i = 0; i < upload->plan.tensors.size(); ++i) {
    const PlannedTensor& tensor = upload->plan.tensors[i];
    if (!tensor.target || tensor.convert) continue;
    const auto& have = served_content->blocks[*tensor.target];
    for (std::size_t block = 0; block < upload->announced[i].size(); ++block) {
      if (have[block] != upload->announced[i][block]) continue;
      auto writer = claim_of(upload, i, block);
      if (!writer) return;
      if ((*writer)->found() != BlockLedger::Claim::kYours) continue;
      const auto from = block_of(std::as_const(*serving_).tensor(*tensor.target), block);
      std::ranges::copy(from, block_of(upload->set->tensor(*tensor.target), block).begin());
      if (!(*writer)->settle_copied(have[block])) return;
    }
  }
}

Result<UploadProgress> Core::progress(const std::string& owner, Epoch epoch) {
  const std::lock_guard lock(mutex_);
  WEFT_TRY_VOID(machine_.check(owner, epoch, now()));
  WEFT_TRY(const auto upload, upload_of(epoch));
  return progress_of(*upload);
}

Result<void> Core::check(const std::string& owner, Epoch epoch) {
  const std::lock_guard lock(mutex_);
  return machine_.check(owner, epoch, now());
}

Result<std::unique_ptr<BlockWriter>> Core::claim(Epoch epoch, std::uint64_t entry,
                                                 std::uint64_t block, Encoding encoding,
                                                 std::uint64_t payload_bytes) {
  if (encoding != Encoding::kIdentity) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("encoding {} is not taken here", encoding_name(encoding)));
  }
  const auto upload = [&] {
    const std::lock_guard lock(mutex_);
    return upload_of(epoch);
  }();
  if (!upload) return upload.error();
  WEFT_TRY(std::unique_ptr<BlockWriter> writer, claim_of(*upload, entry, block));
  if (writer->left_bytes() != payload_bytes) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}, block {}: the frame says {} bytes, the block has {}",
                             (*upload)->plan.tensors[entry].spec.name, block, payload_bytes,
                             writer->left_bytes()));
  }
  return writer;
}

Result<std::unique_ptr<SetWriter>> Core::claim_of(const std::shared_ptr<Upload>& upload,
                                                  std::uint64_t tensor, std::uint64_t block) {
  BlockLedger::Claim found;
  {
    const std::lock_guard lock(mutex_);
    WEFT_TRY_VOID(machine_.touch(upload->epoch, now()));
    found = upload->ledger.claim(tensor, block);
    // An open block means that nothing is sealed, so this cannot fail after touch().
    if (found == BlockLedger::Claim::kYours)
      WEFT_TRY_VOID(machine_.begin_write(upload->epoch, now()));
  }
  if (found == BlockLedger::Claim::kNone) return outside_grid(*upload, tensor, block);
  return std::make_unique<SetWriter>(shared_from_this(), upload, tensor, block, found);
}

BlockFill Core::make_fill(const Upload& upload, std::uint64_t tensor, std::uint64_t block,
                          BlockLedger::Claim found) const {
  const PlannedTensor& planned = upload.plan.tensors[tensor];
  const std::uint64_t size_bytes = upload.sizes_bytes[tensor];
  using Mode = BlockFill::Mode;
  if (found != BlockLedger::Claim::kYours || !planned.target) {
    const Mode mode = found == BlockLedger::Claim::kYours ? Mode::kHash : Mode::kDiscard;
    return BlockFill(planned, size_bytes, block, mode, {}, planned.spec.dtype);
  }
  return BlockFill(planned, size_bytes, block, Mode::kStore, upload.set->tensor(*planned.target),
                   layout_->tensors()[*planned.target].dtype);
}

Result<void> Core::touch(Epoch epoch) {
  const std::lock_guard lock(mutex_);
  return machine_.touch(epoch, now());
}

Result<void> Core::abort(const std::string& owner, Epoch epoch) {
  const std::lock_guard lock(mutex_);
  return machine_.abort(owner, epoch, now());
}

void Core::fail(Epoch epoch, const Error& error) {
  log_warning("weights: an update was dropped, the old version serves on: {}", error.message());
  const std::lock_guard lock(mutex_);
  machine_.fail(epoch, error.message());
}

void Core::seal(const std::string& owner, Epoch epoch, Done<SealedVersion> done) {
  post([self = shared_from_this(), owner, epoch, done = std::move(done)] {
    {
      const std::lock_guard lock(self->mutex_);
      auto checked = self->machine_.check(owner, epoch, now());
      if (!checked) return done(std::move(checked).error());
    }
    const auto content = self->blocking_seal(epoch);
    if (!content) return done(content.error());
    done(SealedVersion{(*content)->id, (*content)->converted});
  });
}

Result<std::shared_ptr<const Content>> Core::blocking_seal(Epoch epoch) {
  std::shared_ptr<Upload> upload;
  {
    const std::lock_guard lock(mutex_);
    WEFT_TRY(upload, upload_of(epoch));
    if (upload->content) return upload->content;
    if (const std::uint64_t missing = upload->ledger.missing_blocks(); missing != 0) {
      WEFT_TRY_VOID(machine_.seal(epoch, missing, now()));
    }
    WEFT_TRY_VOID(machine_.hold(epoch, now()));
  }
  // Unlocked: with every block verified the ledger does not change any more.
  auto content = content_of(*upload, *layout_);
  const std::lock_guard lock(mutex_);
  machine_.release(epoch, now());
  if (!content) {
    machine_.fail(epoch, content.error().message());
    return content;
  }
  WEFT_TRY_VOID(machine_.seal(epoch, 0, now()));
  upload->content = *content;
  return content;
}

void Core::commit(const std::string& owner, Epoch epoch, CommitRequest request,
                  Done<CommitReport> done) {
  run_finish(owner, epoch, std::move(request.label), std::move(done));
}

void Core::finish(const std::string& owner, std::optional<std::string> label,
                  Done<CommitReport> done) {
  run_finish(owner, std::nullopt, std::move(label), std::move(done));
}

void Core::run_finish(const std::string& owner, std::optional<Epoch> epoch,
                      std::optional<std::string> label, Done<CommitReport> done) {
  if (label && label->size() > kMaxLabelBytes) return done(label_too_long(*label));
  std::unique_lock lock(mutex_);
  const auto step = [&]() -> Result<UpdateMachine::FinishStep> {
    if (epoch) WEFT_TRY_VOID(machine_.check(owner, *epoch, now()));
    return machine_.finish(owner, label, now());
  }();
  if (!step) {
    lock.unlock();
    return done(step.error());
  }
  switch (*step) {
    case UpdateMachine::FinishStep::kJoin:
      committing_.push_back(std::move(done));
      return;
    case UpdateMachine::FinishStep::kCommit:
      committing_.push_back(std::move(done));
      return take_over(std::move(lock), label);
    case UpdateMachine::FinishStep::kRepeat:
      break;
    case UpdateMachine::FinishStep::kRename:
      last_commit_ = CommitReport{};
      last_commit_.version = rename(label);
      break;
  }
  const CommitReport report = last_commit_;
  lock.unlock();
  done(report);
}

void Core::take_over(std::unique_lock<std::mutex> lock, const std::optional<std::string>& label) {
  const auto upload = upload_;
  lock.unlock();  // the target may call back at once
  VersionName version{upload->content->id, label.value_or(target_.current().label),
                      upload->content->converted};
  target_.commit(upload->set, {.version = version},
                 [self = shared_from_this(), version](const Result<WeightTarget::Committed>& done) {
                   self->on_committed(version, done.value());
                 });
}

void Core::on_committed(const VersionName& version, const WeightTarget::Committed& committed) {
  std::vector<Done<CommitReport>> waiting;
  CommitReport report{version, 0, 0, committed.stall_us};
  {
    const std::lock_guard lock(mutex_);
    machine_.committed();
    std::swap(serving_, staging_);
    served_ = upload_->content;
    report.tensors = layout_->tensors().size();
    report.bytes = upload_->ledger.total_bytes();
    last_commit_ = report;
    waiting.swap(committing_);
  }
  log_info("weights: {} `{}` took over: {} tensors, {} bytes, stall {} us", version.id,
           version.label, report.tensors, report.bytes, report.stall_us);
  for (const Done<CommitReport>& done : waiting) done(report);
}

Result<void> Core::start(const std::string& owner) {
  const std::lock_guard lock(mutex_);
  return machine_.start(owner, now());
}

void Core::update(const std::string& owner, std::optional<std::string> path, Done<void> done) {
  if (path) return update_from(owner, *path, std::move(done));
  Epoch epoch = 0;
  const auto step = [&] {
    const std::lock_guard lock(mutex_);
    epoch = machine_.epoch();
    return machine_.update(owner, now());
  }();
  if (!step) return done(step.error());
  if (*step != UpdateMachine::UpdateStep::kSeal) return done({});
  seal(owner, epoch, [done = std::move(done)](const auto& content) {
    done(content ? Result<void>() : content.error());
  });
}

void Core::refuse(const std::string& owner, const Error& error) {
  const std::lock_guard lock(mutex_);
  const auto epoch = machine_.open_path(owner, now());
  if (epoch) machine_.fail(*epoch, error.message());
}

void Core::update_from(const std::string& owner, const std::string& path, Done<void> done) {
  const auto epoch = begun([&]() -> Result<Epoch> {
    const std::lock_guard lock(mutex_);
    if (path_job_ && path_job_->owner == owner && path_job_->path == path) {
      path_job_->waiting.push_back(std::move(done));
      return Epoch{0};
    }
    WEFT_TRY_VOID(staging_is_free());
    WEFT_TRY(const Epoch opened, machine_.open_path(owner, now()));
    WEFT_TRY_VOID(machine_.hold(opened, now()));
    path_job_ = PathJob{owner, path, {std::move(done)}};
    return opened;
  }());
  if (!epoch) return done(epoch.error());
  if (*epoch == 0) return;
  post([self = shared_from_this(), epoch = *epoch, path] {
    auto staged = self->blocking_stage_path(epoch, path);
    if (!staged) self->fail(epoch, staged.error());
    std::vector<Done<void>> waiting;
    {
      const std::lock_guard lock(self->mutex_);
      self->machine_.release(epoch, now());
      waiting = std::move(self->path_job_->waiting);
      self->path_job_.reset();
    }
    for (const Done<void>& waiter : waiting) waiter(staged);
  });
}

Result<void> Core::blocking_stage_path(Epoch epoch, const std::filesystem::path& path) {
  WEFT_TRY(const CheckpointFiles files, CheckpointFiles::blocking_open(path));
  std::vector<TensorSpec> specs;
  for (const auto& entry : files.tensors()) specs.push_back(entry.spec);
  auto planned = plan_body(epoch, specs);
  if (!planned) return std::move(planned).error().with_context(path.string());
  WEFT_TRY(const auto upload, [&] {
    const std::lock_guard lock(mutex_);
    return upload_of(epoch);
  }());
  std::vector<std::byte> scratch;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    WEFT_TRY_VOID(blocking_stage_tensor(*upload, i, scratch, [&](std::span<std::byte> out) {
      return files.blocking_read(files.tensors()[i], out);
    }));
  }
  auto sealed = blocking_seal(epoch);
  if (!sealed) return std::move(sealed).error().with_context(path.string());
  return {};
}

Result<void> Core::blocking_stage_tensor(
    Upload& upload, std::size_t index, std::vector<std::byte>& scratch,
    const std::function<Result<void>(std::span<std::byte>)>& read) {
  const PlannedTensor& tensor = upload.plan.tensors[index];
  const auto size = static_cast<std::size_t>(upload.sizes_bytes[index]);
  const bool direct = tensor.target && !tensor.convert;
  if (!direct) scratch.resize(size);
  {
    const std::lock_guard lock(mutex_);
    WEFT_TRY_VOID(machine_.begin_write(upload.epoch, now()));
  }
  const auto bytes = direct ? upload.set->tensor(*tensor.target) : std::span(scratch).first(size);
  const auto result = read(bytes);
  std::vector<Digest> digests;
  if (result) {
    for (std::uint64_t block = 0; block < block_count(size); ++block) {
      digests.push_back(
          block_digest(size, block, block_of(std::span<const std::byte>(bytes), block)));
    }
    if (tensor.convert) {
      kernels::convert(bytes, tensor.spec.dtype, upload.set->tensor(*tensor.target),
                       layout_->tensors()[*tensor.target].dtype);
    }
  }
  const std::lock_guard lock(mutex_);
  for (std::uint64_t block = 0; block < digests.size(); ++block) {
    if (upload.ledger.claim(index, block) == BlockLedger::Claim::kYours) {
      upload.ledger.verified(index, block, digests[block]);
    }
  }
  machine_.end_write(upload.epoch, now());
  return result;
}

Result<void> Core::set_label(const std::string& label) {
  if (label.size() > kMaxLabelBytes) return label_too_long(label);
  const std::lock_guard lock(mutex_);
  rename(label);
  return {};
}

VersionName Core::rename(const std::optional<std::string>& label) {
  VersionName version = target_.current();
  if (label && version.label != *label) {
    version.label = *label;
    target_.rename(version);
  }
  return version;
}

void Core::checksums(std::function<void(std::vector<std::pair<std::string, std::string>>)> done) {
  post([self = shared_from_this(), done = std::move(done)] {
    std::shared_ptr<const WeightSet> set;
    {
      const std::lock_guard lock(self->mutex_);
      set = self->serving_;
      self->being_read_ = set.get();
    }
    std::vector<std::pair<std::string, std::string>> sums;
    for (std::size_t i = 0; i < set->layout().tensors().size(); ++i) {
      sums.emplace_back("dp0:pp0:pcp0:tp0:" + set->layout().tensors()[i].name,
                        sha256_hex(set->tensor(i)));
    }
    {
      const std::lock_guard lock(self->mutex_);
      self->being_read_ = nullptr;
    }
    done(std::move(sums));
  });
}

UploadHost::Status Core::status() {
  const std::lock_guard lock(mutex_);
  const Instant at = now();
  const UpdateState state = machine_.state(at);
  return {state, machine_.owner(), machine_.epoch(), machine_.lease_left(at), target_.current()};
}

std::shared_ptr<const Content> Core::served() {
  const std::lock_guard lock(mutex_);
  return served_;
}

Result<void> Core::settle(Upload& upload, std::uint64_t tensor, std::uint64_t block,
                          const Digest* digest) {
  const std::lock_guard lock(mutex_);
  machine_.end_write(upload.epoch, now());
  if (digest == nullptr) {
    upload.ledger.failed(tensor, block);
  } else {
    upload.ledger.verified(tensor, block, *digest);
  }
  return machine_.touch(upload.epoch, now());
}

// A body or a path is staging before its header, and so its tensors, are known.
Result<std::shared_ptr<Upload>> Core::upload_of(Epoch epoch) const {
  if (upload_ && upload_->epoch == epoch) return upload_;
  return Error(ErrorCode::kConflict, "the header of this upload has not come yet");
}

UploadProgress Core::progress_of(const Upload& upload) {
  return {upload.epoch,
          machine_.state(now()),
          upload.ledger.missing(),
          upload.ledger.total_bytes(),
          upload.ledger.verified_bytes(),
          {Encoding::kIdentity},
          false};
}

Result<void> Core::staging_is_free() const {
  if (being_read_ != staging_.get()) return {};
  return Error(ErrorCode::kOverloaded,
               "the retired weights are still being read: try again in a moment");
}

}  // namespace weft::internal
