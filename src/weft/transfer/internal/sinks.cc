#include "weft/transfer/internal/sinks.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "weft/base/clock.h"
#include "weft/format/safetensors.h"
#include "weft/protocol/block_frame.h"

namespace weft::internal {
namespace {

// A header that lies about its length costs this much at a time, not all that it says.
constexpr std::size_t kHeaderStepBytes = 1 << 20;

class FileSink final : public http::BodySink {
 public:
  FileSink(std::shared_ptr<UploadHost> host, std::string owner, Epoch epoch,
           std::optional<std::uint64_t> length_bytes, std::function<void(Result<void>)> staged)
      : host_(std::move(host)),
        owner_(std::move(owner)),
        epoch_(epoch),
        length_bytes_(length_bytes),
        staged_(std::move(staged)) {}
  ~FileSink() override {
    fail(Error(ErrorCode::kDisconnected, "the body was not read to its end"));
  }

  Result<std::span<std::byte>> buffer() override {
    auto room = next_room();
    if (!room) refuse(room.error());
    return room;
  }

  Result<void> filled(std::size_t size) override {
    auto taken = take(size);
    if (!taken) refuse(taken.error());
    return taken;
  }

  void finish() override {
    if (phase_ != Phase::kEnd) {
      const Error error(ErrorCode::kCorrupt,
                        fmt::format("the file ends early: {}", expected_text()));
      fail(error);
      return staged_(error);
    }
    over_ = true;
    host_->seal(owner_, epoch_, [staged = std::move(staged_)](const auto& sealed) {
      staged(sealed ? Result<void>() : sealed.error());
    });
  }

  void abort(const Error& error) override { fail(error); }

 private:
  enum class Phase { kPrefix, kHeader, kTensors, kEnd };

  Result<std::span<std::byte>> next_room() {
    switch (phase_) {
      case Phase::kPrefix:
        return std::span(prefix_).subspan(have_bytes_);
      case Phase::kHeader:
        if (have_bytes_ == header_.size()) {
          header_.resize(static_cast<std::size_t>(
              std::min<std::uint64_t>(header_bytes_, header_.size() + kHeaderStepBytes)));
        }
        return std::as_writable_bytes(std::span(header_)).subspan(have_bytes_);
      case Phase::kTensors:
        return writer_->buffer();
      case Phase::kEnd:
        break;
    }
    return Error(ErrorCode::kCorrupt, "the file goes on after the last tensor");
  }

  Result<void> take(std::size_t size) {
    if (phase_ == Phase::kTensors) {
      WEFT_TRY_VOID(writer_->filled(size));
      if (writer_->left_bytes() > 0) return host_->touch(epoch_);
      WEFT_TRY_VOID(writer_->settle(std::nullopt));
      ++block_;
      return next_block();
    }
    have_bytes_ += size;
    WEFT_TRY_VOID(host_->touch(epoch_));
    if (phase_ == Phase::kPrefix && have_bytes_ == prefix_.size()) {
      WEFT_TRY(header_bytes_, parse_safetensors_prefix(prefix_));
      phase_ = Phase::kHeader;
      have_bytes_ = 0;
    } else if (phase_ == Phase::kHeader && have_bytes_ == header_bytes_) {
      return begin_tensors();
    }
    return {};
  }

  // The header is read: the last chance to refuse before the first byte is written.
  Result<void> begin_tensors() {
    WEFT_TRY(const SafetensorsHeader header, parse_safetensors_header(header_));
    const std::uint64_t file_bytes = kSafetensorsPrefixBytes + header_bytes_ + header.data_bytes;
    if (length_bytes_ && *length_bytes_ != file_bytes) {
      return Error(ErrorCode::kCorrupt, fmt::format("the body has {} bytes, its header says {}",
                                                    *length_bytes_, file_bytes));
    }
    for (const SafetensorsEntry& entry : header.tensors) tensors_.push_back(entry.spec);
    WEFT_TRY_VOID(host_->plan_body(epoch_, tensors_));
    header_ = std::string();
    phase_ = Phase::kTensors;
    return next_block();
  }

  Result<void> next_block() {
    writer_ = nullptr;
    for (; tensor_ < tensors_.size(); ++tensor_, block_ = 0) {
      WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(tensors_[tensor_]));
      if (block_ == block_count(size_bytes)) continue;
      WEFT_TRY(writer_, host_->claim(epoch_, tensor_, block_, Encoding::kIdentity,
                                     block_length(size_bytes, block_)));
      return {};
    }
    phase_ = Phase::kEnd;
    return {};
  }

  std::string expected_text() const {
    if (phase_ != Phase::kTensors) return "its header is not complete";
    return fmt::format("the data of {} is not complete", tensors_[tensor_].name);
  }

  void refuse(const Error& error) {
    fail(error);
    host_->refused(error);
  }

  // The first reason is the one that counts.
  void fail(const Error& error) {
    if (std::exchange(over_, true)) return;
    writer_ = nullptr;
    host_->fail(epoch_, error);
  }

  std::shared_ptr<UploadHost> host_;
  std::string owner_;
  Epoch epoch_;
  std::optional<std::uint64_t> length_bytes_;
  std::function<void(Result<void>)> staged_;
  bool over_ = false;  // sealed or failed

  Phase phase_ = Phase::kPrefix;
  std::array<std::byte, kSafetensorsPrefixBytes> prefix_{};
  std::uint64_t header_bytes_ = 0;
  std::string header_;
  std::size_t have_bytes_ = 0;  // of the prefix or the header
  std::vector<TensorSpec> tensors_;
  std::uint64_t tensor_ = 0, block_ = 0;
  std::unique_ptr<BlockWriter> writer_;
};

class BlocksSink final : public http::BodySink {
 public:
  BlocksSink(std::shared_ptr<UploadHost> host, Epoch epoch, std::shared_ptr<BlockHolders> holders,
             std::function<void()> close, std::function<void(Result<BlockCounts>)> done)
      : host_(std::move(host)),
        epoch_(epoch),
        holders_(std::move(holders)),
        close_(std::move(close)),
        done_(std::move(done)) {}
  ~BlocksSink() override { let_go(); }

  Result<std::span<std::byte>> buffer() override {
    if (writer_) return writer_->buffer();
    return std::span(head_).subspan(have_bytes_);
  }

  Result<void> filled(std::size_t size) override {
    auto taken = take(size);
    if (!taken) host_->refused(taken.error());
    return taken;
  }

  void finish() override {
    if (writer_ || have_bytes_ != 0) {
      return done_(Error(ErrorCode::kCorrupt, "the body ends in the middle of a block"));
    }
    done_(counts_);
  }

  // The block in flight is lost, and nothing else.
  void abort(const Error&) override {
    let_go();
    writer_ = nullptr;
  }

 private:
  Result<void> take(std::size_t size) {
    if (writer_) {
      if (is_mine()) holders_->touch(block(), now());
      WEFT_TRY_VOID(writer_->filled(size));
      return writer_->left_bytes() == 0 ? end_block() : host_->touch(epoch_);
    }
    have_bytes_ += size;
    return have_bytes_ < head_.size() ? Result<void>() : begin_block();
  }

  Result<void> begin_block() {
    have_bytes_ = 0;
    frame_ = parse_block_frame(head_);
    const auto encoding = parse_encoding(frame_.encoding);
    if (!encoding) {
      return Error(encoding.error().code(),
                   fmt::format("block frame of entry {}, block {}: {}", frame_.tensor, frame_.block,
                               encoding.error().message()));
    }
    WEFT_TRY(writer_,
             host_->claim(epoch_, frame_.tensor, frame_.block, *encoding, frame_.length_bytes));
    if (is_mine()) holders_->hold(block(), close_, now());
    if (writer_->found() == BlockLedger::Claim::kFilling) holders_->want(block(), now());
    return {};
  }

  Result<void> end_block() {
    let_go();
    const auto writer = std::move(writer_);
    WEFT_TRY_VOID(writer->settle(frame_.digest));
    const bool is_mine = writer->found() == BlockLedger::Claim::kYours;
    const bool is_busy = writer->found() == BlockLedger::Claim::kFilling;
    ++(is_mine ? counts_.verified : is_busy ? counts_.busy : counts_.repeated);
    return {};
  }

  bool is_mine() const { return writer_ && writer_->found() == BlockLedger::Claim::kYours; }
  BlockHolders::Block block() const { return {epoch_, frame_.tensor, frame_.block}; }
  void let_go() {
    if (is_mine()) holders_->drop(block());
  }

  std::shared_ptr<UploadHost> host_;
  Epoch epoch_;
  std::shared_ptr<BlockHolders> holders_;
  std::function<void()> close_;
  std::function<void(Result<BlockCounts>)> done_;
  std::array<std::byte, kBlockFrameBytes> head_{};
  std::size_t have_bytes_ = 0;  // of head_
  BlockFrame frame_;
  std::unique_ptr<BlockWriter> writer_;
  BlockCounts counts_;
};

}  // namespace

std::unique_ptr<http::BodySink> make_file_sink(std::shared_ptr<UploadHost> host, std::string owner,
                                               Epoch epoch,
                                               std::optional<std::uint64_t> length_bytes,
                                               std::function<void(Result<void>)> staged) {
  return std::make_unique<FileSink>(std::move(host), std::move(owner), epoch, length_bytes,
                                    std::move(staged));
}

std::unique_ptr<http::BodySink> make_blocks_sink(std::shared_ptr<UploadHost> host, Epoch epoch,
                                                 std::shared_ptr<BlockHolders> holders,
                                                 std::function<void()> close,
                                                 std::function<void(Result<BlockCounts>)> done) {
  return std::make_unique<BlocksSink>(std::move(host), epoch, std::move(holders), std::move(close),
                                      std::move(done));
}

}  // namespace weft::internal
