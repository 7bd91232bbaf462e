#pragma once
// Receiver: a server that takes pushes and serves tokens meanwhile, and what it holds to whoever
// asks. What it decides is ReceiverMachine's; the bytes, the jobs and the connections are modelled
// here. One thread.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/codec/block_codec.h"
#include "weft/protocol/block_frame.h"
#include "weft/protocol/push_machine.h"
#include "weft/protocol/receiver_machine.h"
#include "weft/sim/internal/content.h"
#include "weft/sim/internal/engine.h"
#include "weft/sim/internal/network.h"
#include "weft/sim/internal/source.h"

namespace weft::sim {

// What a push brings: all of `content` or a part of it, maybe as changes of a base.
struct Offer {
  const Content* content = nullptr;
  bool announced = true;          // with the digests of its blocks
  const Content* base = nullptr;  // null: none is named
  std::vector<bool> entries;      // that are sent; empty: all
  bool replace = false;

  bool sends(std::size_t entry) const { return entries.empty() || entries[entry]; }
  bool is_partial() const;
  // The entries that are sent, in order: the upload's index of each is its index here.
  std::vector<std::size_t> sent() const;
  UploadOffer on_the_wire() const;
};

// A block on the wire.
struct SentBlock {
  BlockFrame frame;
  std::vector<std::byte> payload;
};
// `place`: in the upload. Whole where `encoding` needs a base that the offer does not have.
SentBlock block_to_send(const Offer& offer, const BlockPlace& place, Encoding encoding);
inline constexpr std::size_t kPiecesOfBlock = 3;  // the frame, and the payload in two parts

class Receiver : public Source {
 public:
  template <typename T>
  using Reply = Network::Reply<T>;

  static constexpr seconds kLease{60};

  Receiver(Simulation& simulation, Library& library, std::string name, ReceiverRules rules);

  // The routes of the push.
  void open_upload(const std::string& owner, const Offer& offer, Reply<PushMachine::Opened> reply);
  Result<std::shared_ptr<Body>> open_body(const std::string& owner, const std::string& upload,
                                          std::vector<SentBlock> blocks);
  void seal(const std::string& owner, const std::string& upload, Reply<std::string> reply);
  void commit(const std::string& owner, const std::string& upload, const CommitWish& wish,
              Reply<VersionName> reply);
  Result<void> abort(const std::string& owner, const std::string& upload);
  Result<void> start(const std::string& owner);
  void update(const std::string& owner, Reply<bool> reply);
  void finish(const std::string& owner, const CommitWish& wish, Reply<VersionName> reply);
  void roll_back(const std::string& owner, const std::string& id,
                 const std::optional<std::string>& expected, Reply<VersionName> reply);

  // Of the pull: a reader of one version's bytes.
  Result<std::shared_ptr<Download>> open_download(const std::string& id,
                                                  std::vector<std::size_t> places) override;
  Result<std::shared_ptr<const VersionContent>> content_of(const std::string& id) override;

  const VersionName& serving() const { return engine_->version(); }
  const Resident* retired() const { return machine_->retired(); }
  bool patches() const { return rules_.patch_mode; }
  // Takes a patch's digest on trust until it is committed.
  bool trusts() const { return rules_.patch_mode && !hashes_patches_; }
  Library& library() { return library_; }
  // After all is over: nothing may be left of any update.
  void check_idle();

 protected:
  void on_crash() override;
  void on_start() override;

 private:
  class BlockBody;
  // Someone who reads a set from outside.
  class Reading : public Download {
   public:
    Reading(Receiver& receiver, SetIndex set, const std::string& id,
            std::vector<std::size_t> places);
    ~Reading() override;

    std::size_t pieces() const override { return places_.size(); }
    Result<std::vector<std::uint8_t>> read(std::size_t index) override;
    void cut_if_on(SetIndex set);

   private:
    Receiver& receiver_;
    const std::uint64_t instance_;
    const SetIndex set_;
    const std::vector<std::size_t> places_;
    const std::uint64_t reader_;
    bool is_cut_ = false;
  };
  // What is kept of one staging beside the set.
  struct Kept {
    const Content* expected = nullptr;  // what its pusher means
    Cells file{};
    struct Changes {
      Encoding encoding;
      std::vector<std::byte> payload;
    };
    std::map<std::size_t, Changes> changes;  // [places of the model]
  };

  Result<Epoch> epoch_of(const std::string& upload) const;
  PushMachine::Opened opened(const Staging& staging) const;
  void try_open(const std::string& owner, const Offer& offer,
                const Reply<PushMachine::Opened>& reply);
  std::size_t place_of(const Staging& staging, BlockPlace place) const;
  void end_connections_if_busy(const Error& error);
  void retry_openings();
  void cut_readers_later();
  void copy_served(const std::shared_ptr<Staging>& staging, std::vector<BlockPlace> places,
                   const Job& done);
  void store(const Staging& staging, BlockPlace place, std::size_t cell, std::uint8_t value);
  void answer_finish(const Result<UpdateMachine::FinishStep>& step, Reply<VersionName> reply);
  void hand_over();
  void taken_over(Epoch epoch, const Result<void>& result);
  Result<void> apply_patches(const Staging& staging);
  void confirm();

  Instant now() const { return simulation.now(); }

  Library& library_;
  const ReceiverRules rules_;
  const bool hashes_patches_;  // before the commit, and not after it
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ReceiverMachine> machine_;
  std::map<Epoch, Kept> kept_;
  std::vector<Job> waiting_;  // openings
  std::vector<Reply<VersionName>> committing_;
  VersionName last_commit_;
  std::map<std::pair<Epoch, std::string>, VersionName>
      answered_;                       // the first answer to each commit
  std::map<std::size_t, Cells> undo_;  // of the last patch
  std::vector<std::weak_ptr<Body>> connections_;
  std::vector<std::weak_ptr<Reading>> readings_;
};

}  // namespace weft::sim
