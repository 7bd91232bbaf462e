#include "weft/sim/internal/receiver.h"

#include <charconv>
#include <utility>

#include <fmt/core.h>

#include "weft/sim/internal/block_body.h"
#include "weft/sim/internal/rules.h"

namespace weft::sim {
namespace {

using Claim = BlockLedger::Claim;

Resident resident_of(const Content& content) {
  const auto& blocks = content.version->blocks;
  return {{content.id(), "default"}, content.version, {blocks.back()}, {}};
}

}  // namespace

Receiver::Receiver(Simulation& simulation_, Library& library, std::string name_,
                   ReceiverRules rules)
    : Source(simulation_, std::move(name_)),
      library_(library),
      rules_(rules),
      hashes_patches_(simulation_.random.chance(50)) {
  on_start();
  simulation.always([this] {
    if (up()) engine_->check();
  });
}

void Receiver::on_crash() {
  connections_.clear();
  readings_.clear();
  committing_.clear();
  waiting_.clear();
  answered_.clear();
  kept_.clear();
  undo_.clear();
}

void Receiver::on_start() {
  const Content& first = library_.version(0);
  engine_ = std::make_unique<Engine>(*this, library_, first);
  machine_ = std::make_unique<ReceiverMachine>(Model::get().layout(), rules_, resident_of(first));
  last_commit_ = {};
}

void Receiver::check_idle() {
  const UpdateState state = machine_->state(now());
  if (state != UpdateState::kIdle) {
    simulation.violated(rule::kLeak,
                        fmt::format("the update of `{}` is still {}", machine_->machine().owner(),
                                    update_state_name(state)));
  }
  if (!engine_->is_confirmed()) {
    simulation.violated(rule::kVerified, "a patch was never hashed");
  }
  if (has_jobs() || !committing_.empty() || !waiting_.empty()) {
    simulation.violated(rule::kLeak, "a call still waits for its answer");
  }
}

Result<Epoch> Receiver::epoch_of(const std::string& upload) const {
  const std::string prefix = fmt::format("{}-", instance());
  Epoch epoch = 0;
  if (!upload.starts_with(prefix)) {
    return Error(ErrorCode::kNotFound, "no such upload in this process");
  }
  std::from_chars(upload.data() + prefix.size(), upload.data() + upload.size(), epoch);
  return epoch;
}

PushMachine::Opened Receiver::opened(const Staging& staging) const {
  return {fmt::format("{}-{}", instance(), staging.epoch), staging.ledger.verified_bytes(),
          staging.ledger.missing()};
}

// Where an entry of a staging is in the model.
std::size_t Receiver::place_of(const Staging& staging, BlockPlace place) const {
  const auto target = staging.plan.try_target(place.entry);
  return Model::get().index_of({target.value_or(Model::get().file_entry()), place.block});
}

void Receiver::end_connections_if_busy(const Error& error) {
  if (error.code() != ErrorCode::kOverloaded) return;
  for (const auto& weak : connections_) {
    if (const auto body = weak.lock()) body->close();
  }
}

void Receiver::open_upload(const std::string& owner, const Offer& offer,
                           Reply<PushMachine::Opened> reply) {
  try_open(owner, offer, reply);
}

void Receiver::try_open(const std::string& owner, const Offer& offer,
                        const Reply<PushMachine::Opened>& reply) {
  const auto opening = machine_->open_upload(owner, offer.on_the_wire(), now());
  if (!opening) {
    end_connections_if_busy(opening.error());
    return reply(opening.error());
  }
  if (opening->evict) engine_->evict();
  if (opening->epoch == 0) {
    waiting_.emplace_back([this, owner, offer, reply] { try_open(owner, offer, reply); });
    return cut_readers_later();
  }
  const auto staging = machine_->staging(opening->epoch).value();
  if (opening->resumed) return reply(opened(*staging));
  std::vector<bool> entries(Model::get().entries(), false);
  for (const std::size_t entry : offer.sent()) entries[entry] = true;
  const Content& served = *library_.try_find(machine_->serving().name.id);
  const Content& meant = library_.mixed(served, *offer.content, entries);
  kept_[staging->epoch] = {offer.announced ? &meant : nullptr,
                           engine_->cells(engine_->serving(), Model::get().file_place()),
                           {}};
  if (!rules_.patch_mode) engine_->give(staging->set, staging->epoch);
  if (rules_.patch_mode) return reply(opened(*staging));
  static_cast<void>(machine_->hold(staging->epoch, now()));
  post([this, staging, reply] {
    copy_served(staging, machine_->copies(*staging), [this, staging, reply] {
      machine_->release(staging->epoch, now());
      reply(opened(*staging));
      job_done();
    });
  });
}

// Calls that wait for memory are made again.
void Receiver::retry_openings() {
  for (const Job& opening : std::exchange(waiting_, {})) opening();
}

void Receiver::cut_readers_later() {
  const auto at = machine_->cut_readers_at();
  if (!at) return;
  after(std::chrono::duration_cast<Duration>(*at - now()), [this, at] {
    if (machine_->cut_readers_at() != at) return;
    for (const auto& weak : readings_) {
      if (const auto reading = weak.lock()) reading->cut_if_on(1 - machine_->serving_set());
    }
  });
}

void Receiver::copy_served(const std::shared_ptr<Staging>& staging, std::vector<BlockPlace> places,
                           const Job& done) {
  if (places.empty()) return done();
  const BlockPlace place = places.back();
  places.pop_back();
  const auto claim = machine_->claim(*staging, place, FrameForm::kWhole, kBlockCells, now());
  if (!claim || claim->found != Claim::kYours) return copy_served(staging, places, done);
  after(simulation.random.between(milliseconds(1), milliseconds(500)),
        [this, staging, places, place, claim, done] {
          const Cells& cells = engine_->cells(engine_->serving(), place_of(*staging, place));
          for (std::size_t i = 0; i < kBlockCells; ++i) store(*staging, place, i, cells[i]);
          static_cast<void>(machine_->settle(*staging, *claim, digest_of_cells(cells), {}, now()));
          copy_served(staging, places, done);
        });
}

// One byte of a staging: a tensor's into its set, a file's into memory of the staging's own.
void Receiver::store(const Staging& staging, BlockPlace place, std::size_t cell,
                     std::uint8_t value) {
  const std::size_t at = place_of(staging, place);
  if (at == Model::get().file_place()) {
    kept_[staging.epoch].file[cell] = value;
  } else {
    engine_->write(staging.set, staging.epoch, at, cell, value);
  }
}

Result<std::shared_ptr<Body>> Receiver::open_body(const std::string& owner,
                                                  const std::string& upload,
                                                  std::vector<SentBlock> blocks) {
  WEFT_TRY(const Epoch epoch, epoch_of(upload));
  WEFT_TRY_VOID(machine_->check(owner, epoch, now()));
  WEFT_TRY(auto staging, machine_->staging(epoch));
  const auto body = std::make_shared<BlockBody>(*this, std::move(staging), std::move(blocks));
  std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
  connections_.push_back(body);
  return std::shared_ptr<Body>(body);
}

void Receiver::seal(const std::string& owner, const std::string& upload, Reply<std::string> reply) {
  const auto epoch = epoch_of(upload);
  if (!epoch) return reply(epoch.error());
  post([this, owner, epoch = *epoch, reply] {
    const auto answer = [this, reply](Result<std::string> id) {
      reply(std::move(id));
      job_done();
    };
    const auto staging = machine_->begin_seal(owner, epoch, now());
    if (!staging) return answer(staging.error());
    if ((*staging)->resident) return answer((*staging)->resident->name.id);
    after(simulation.random.between(milliseconds(1), seconds(5)),
          [this, staging = *staging, answer] {
            auto resident = ReceiverMachine::compose(*staging, machine_->layout());
            const auto sealed = machine_->end_seal(*staging, std::move(resident), now());
            if (!sealed) {
              if (sealed.error().message().find("lease ran out") != std::string::npos) {
                simulation.violated(rule::kLease, sealed.error().message());
              }
              return answer(sealed.error());
            }
            answer(staging->resident->name.id);
          });
  });
}

void Receiver::commit(const std::string& owner, const std::string& upload, const CommitWish& wish,
                      Reply<VersionName> reply) {
  const auto epoch = epoch_of(upload);
  if (!epoch) return reply(epoch.error());
  const auto checked = [this, epoch = *epoch, label = wish.label,
                        reply](Result<VersionName> answer) {
    const std::pair call(epoch, label.value_or(""));
    if (answer && answered_.emplace(call, *answer).first->second != *answer) {
      simulation.violated(rule::kOnce,
                          fmt::format("the commit of {} was answered in two ways", epoch));
    }
    reply(std::move(answer));
  };
  answer_finish(machine_->finish(owner, *epoch, wish, now()), checked);
}

void Receiver::finish(const std::string& owner, const CommitWish& wish, Reply<VersionName> reply) {
  answer_finish(machine_->finish(owner, std::nullopt, wish, now()), std::move(reply));
}

void Receiver::roll_back(const std::string& owner, const std::string& id,
                         const std::optional<std::string>& expected, Reply<VersionName> reply) {
  const auto step = machine_->roll_back(owner, id, expected, {}, now());
  const bool serves = step && *step == UpdateMachine::FinishStep::kRepeat;
  if (serves) return reply(machine_->serving().name);
  answer_finish(step, std::move(reply));
}

void Receiver::answer_finish(const Result<UpdateMachine::FinishStep>& step,
                             Reply<VersionName> reply) {
  using Step = UpdateMachine::FinishStep;
  if (!step) return reply(step.error());
  switch (*step) {
    case Step::kJoin:
      committing_.push_back(std::move(reply));
      return;
    case Step::kCommit:
      committing_.push_back(std::move(reply));
      return hand_over();
    case Step::kRepeat:
      break;
    case Step::kRename:
      engine_->rename(machine_->serving().name);
      last_commit_ = machine_->serving().name;
      break;
  }
  reply(last_commit_);
}

void Receiver::hand_over() {
  if (!machine_->may_hand_over()) return;  // again when its last reader has ended
  const Handover handover = machine_->handover();
  Engine::Takeover takeover;
  takeover.handover = handover;
  takeover.expected = library_.try_find(handover.version.id);
  const auto staging = machine_->staging(handover.epoch);
  if (staging) {
    const Kept& kept = kept_[handover.epoch];
    takeover.expected = kept.expected;
    takeover.file = kept.file;
    takeover.unverified = !(*staging)->is_verified;
    if (handover.in_place) takeover.patch = [this, s = *staging] { return apply_patches(*s); };
  }
  takeover.done = [this, epoch = handover.epoch](const Result<void>& result) {
    taken_over(epoch, result);
  };
  takeover.released = [this, epoch = handover.epoch] {
    machine_->released(epoch);
    retry_openings();
  };
  engine_->take_over(std::move(takeover));
}

void Receiver::taken_over(Epoch epoch, const Result<void>& result) {
  if (result) {
    machine_->committed();
    last_commit_ = machine_->serving().name;
    if (machine_->unconfirmed()) {
      after(simulation.random.between(milliseconds(1), seconds(10)), [this] { confirm(); });
    }
  } else {
    machine_->not_committed(result.error().message());
  }
  simulation.trace(name, "{} is {}", epoch, result ? "committed" : result.error().message());
  for (const auto& reply : std::exchange(committing_, {})) {
    result ? reply(last_commit_) : reply(result.error());
  }
}

// Between two tokens: all of them, or none.
Result<void> Receiver::apply_patches(const Staging& staging) {
  undo_.clear();
  for (const auto& [place, changes] : kept_[staging.epoch].changes) {
    const Cells old = engine_->cells(engine_->serving(), place);
    const auto cells = with_changes(changes.encoding, changes.payload, old);
    if (!cells) {
      for (const auto& [patched, before] : undo_) engine_->patch(patched, before);
      return cells.error();
    }
    undo_[place] = old;
    engine_->patch(place, *cells);
  }
  const std::size_t file = Model::get().file_place();
  undo_[file] = engine_->cells(engine_->serving(), file);
  engine_->patch(file, kept_[staging.epoch].file);
  return {};
}

// Hashes again what a patch has changed, and takes it back where that is something else.
void Receiver::confirm() {
  const auto staging = machine_->unconfirmed();
  bool is_right = true;
  for (std::uint64_t entry = 0; entry < staging->plan.sizes_bytes.size(); ++entry) {
    const auto digests = staging->ledger.digests(entry);
    for (std::uint64_t block = 0; block < digests.size(); ++block) {
      const Cells& cells = engine_->cells(engine_->serving(), place_of(*staging, {entry, block}));
      is_right &= digest_of_cells(cells) == digests[block];
    }
  }
  if (is_right) {
    machine_->confirmed();
    engine_->confirm();
    return retry_openings();
  }
  const VersionName before = machine_->revoked().version;
  engine_->rename(machine_->serving().name);
  const auto undo = [this] {
    for (const auto& [place, cells] : undo_) engine_->patch(place, cells);
  };
  engine_->take_back(undo, before, [this] {
    machine_->undone();
    retry_openings();
  });
}

Result<std::shared_ptr<const VersionContent>> Receiver::content_of(const std::string& id) {
  for (const Resident* const resident : {&machine_->serving(), machine_->retired()}) {
    if (resident != nullptr && resident->name.id == id) return resident->content;
  }
  return Error(ErrorCode::kNotFound, "no such version here");
}

Result<std::shared_ptr<Download>> Receiver::open_download(const std::string& id,
                                                          std::vector<std::size_t> places) {
  WEFT_TRY(const SetIndex set, machine_->begin_read(id));
  const auto reading = std::make_shared<Reading>(*this, set, id, std::move(places));
  std::erase_if(readings_, [](const auto& weak) { return weak.expired(); });
  readings_.push_back(reading);
  return std::shared_ptr<Download>(reading);
}

Receiver::Reading::Reading(Receiver& receiver, SetIndex set, const std::string& id,
                           std::vector<std::size_t> places)
    : receiver_(receiver),
      instance_(receiver.instance()),
      set_(set),
      places_(std::move(places)),
      reader_(receiver.engine_->open_reader(set, id)) {}

Receiver::Reading::~Reading() {
  cut_if_on(set_);
}

Result<std::vector<std::uint8_t>> Receiver::Reading::read(std::size_t index) {
  if (is_cut_) return Error(ErrorCode::kDisconnected, "the version is being overwritten");
  const Cells& cells = receiver_.engine_->cells(set_, places_[index]);
  return std::vector<std::uint8_t>(cells.begin(), cells.end());
}

void Receiver::Reading::cut_if_on(SetIndex set) {
  if (set != set_ || std::exchange(is_cut_, true) || !receiver_.is(instance_)) return;
  receiver_.engine_->close_reader(reader_);
  receiver_.machine_->end_read(set_);
  // What waited for it goes on, but not in the midst of another call.
  receiver_.after(Duration(0), [&receiver = receiver_] { receiver.retry_openings(); });
}

Result<void> Receiver::abort(const std::string& owner, const std::string& upload) {
  WEFT_TRY(const Epoch epoch, epoch_of(upload));
  return machine_->abort(owner, epoch, now());
}

Result<void> Receiver::start(const std::string& owner) {
  return machine_->start(owner, now());
}

void Receiver::update(const std::string& owner, Reply<bool> reply) {
  const Epoch epoch = machine_->machine().epoch();
  const auto step = machine_->update(owner, now());
  if (!step) return reply(step.error());
  if (*step != UpdateMachine::UpdateStep::kSeal) return reply(true);
  seal(owner, fmt::format("{}-{}", instance(), epoch),
       [reply](const Result<std::string>& id) { id ? reply(true) : reply(id.error()); });
}

}  // namespace weft::sim
