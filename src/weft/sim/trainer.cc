#include "weft/sim/internal/trainer.h"

#include <utility>

#include <fmt/core.h>

#include "weft/sim/internal/rules.h"

namespace weft::sim {
namespace {

// What a server says with its 503, and where a third version has no memory yet.
template <typename T>
std::optional<milliseconds> retry_after(const Result<T>& answer) {
  const bool says = !answer && (answer.error().code() == ErrorCode::kOverloaded ||
                                answer.error().param() == kOnThirdParam);
  return says ? std::optional(milliseconds(1'000)) : std::nullopt;
}

// Of what changed since a base, where there is one.
Encoding some_encoding(Random& random) {
  return random.chance(50) ? Encoding::kDelta : Encoding::kSparse;
}

}  // namespace

Trainer::Trainer(Simulation& simulation_, Network& network, Receiver& receiver, std::string name_,
                 Habits habits)
    : Node(simulation_, std::move(name_)),
      network_(network),
      receiver_(receiver),
      habits_(std::move(habits)),
      known_(&receiver.library().version(0)) {}

void Trainer::push(const Content& content) {
  choose_offer(content);
  begin();
}

void Trainer::join(const Trainer& first) {
  if (first.idle()) return;
  offer_ = first.offer_;
  begin();
}

void Trainer::begin() {
  // Of uploads that are shared and bring no digests, each version has its own: docs/protocol.md.
  const bool has_its_own = habits_.writers > 1 && !habits_.announced;
  session_ = habits_.session + (has_its_own ? "-" + offer_.content->name : "");
  std::vector<std::uint64_t> sizes;
  for (const std::size_t entry : offer_.sent()) sizes.push_back(Model::get().entry_bytes(entry));
  PushMachine::Options options;
  options.announced = habits_.announced;
  options.base = offer_.base != nullptr;
  options.partial = offer_.is_partial();
  options.writer = habits_.writer;
  options.writers = habits_.writers;
  machine_ = std::make_unique<PushMachine>(sizes, options);
  ++pushes_;
  began_over_.reset();
  lost_turn_ = false;
  simulation.trace(name, "pushes {} as `{}`{}{}", offer_.content->name, session_,
                   offer_.base ? " based on " + offer_.base->name : "",
                   offer_.is_partial() ? ", a part of it" : "");
  next();
}

void Trainer::choose_offer(const Content& content) {
  Random& random = simulation.random;
  offer_ = {&content, habits_.announced, nullptr, std::vector<bool>(Model::get().entries(), true),
            true};
  offer_.entries.back() = random.chance(50);  // the file
  if (!random.chance(habits_.based)) return;
  offer_.base = known_;
  if (!random.chance(habits_.partial)) return;
  for (std::size_t entry = 0; entry < Model::get().file_entry(); ++entry) {
    offer_.entries[entry] = random.chance(50);
  }
  offer_.entries[0] = true;  // so that something comes
}

bool Trainer::means(const std::string& id) const {
  if (receiver_.trusts() && !habits_.announced) return true;  // found out later
  const Content* const content = receiver_.library().try_find(id);
  if (content == nullptr) return false;
  const Model& model = Model::get();
  for (std::size_t i = 0; i < model.places().size(); ++i) {
    const bool sent = offer_.sends(model.places()[i].entry);
    if (sent && content->cells[i] != offer_.content->cells[i]) return false;
    const bool kept = offer_.is_partial() && i != model.file_place();
    if (!sent && kept && content->cells[i] != offer_.base->cells[i]) return false;
  }
  return true;
}

template <typename T>
Network::Reply<T> Trainer::mine(std::function<void(Result<T>)> then) {
  return [this, push = pushes_, then = std::move(then)](Result<T> result) {
    if (machine_ && push == pushes_) then(std::move(result));
  };
}

CommitWish Trainer::wish() const {
  CommitWish wish;
  wish.label = fmt::format("{}-{}", session_, offer_.content->name);
  if (habits_.finishes) wish.on_update = OnUpdate::kFinish;
  return wish;
}

void Trainer::next() {
  if (simulation.random.chance(habits_.odd)) do_something_odd();
  switch (machine_->step()) {
    case Step::kAskServing:
      return ask_serving();
    case Step::kOpen:
      return open();
    case Step::kSend:
      return send();
    case Step::kSeal:
      return seal();
    case Step::kCommit:
      return commit();
    case Step::kDrop:
      return drop();
    case Step::kWait:
      return after(machine_->wait(), [this, push = pushes_] {
        if (!machine_ || push != pushes_) return;
        machine_->waited();
        next();
      });
    case Step::kDone:
    case Step::kFailed:
      return end();
  }
}

void Trainer::ask_serving() {
  using Serving = PushMachine::Serving;
  network_.call<Serving>(
      *this, receiver_, "GET status",
      [this](const auto& reply) {
        reply(Serving{receiver_.serving().id, fmt::format("{}", receiver_.instance())});
      },
      mine<Serving>([this](const auto& serving) {
        if (serving) hear_serving(*serving);
        machine_->serving(serving ? std::optional(*serving) : std::nullopt);
        next();
      }));
}

void Trainer::hear_serving(const PushMachine::Serving& serving) {
  const Content* const content = receiver_.library().try_find(serving.id);
  if (content != nullptr) known_ = content;
  if (began_over_ && began_over_->instance == serving.instance) {
    lost_turn_ = lost_turn_ || began_over_->id != serving.id;
  } else {
    began_over_ = serving;  // a new process serves what it began with
    lost_turn_ = false;
  }
}

void Trainer::open() {
  if (!machine_->with_base()) offer_.base = nullptr;
  offer_.replace = machine_->replaces();
  network_.call<PushMachine::Opened>(
      *this, receiver_, "POST uploads " + offer_.content->name,
      [this, owner = session_, offer = offer_](const auto& reply) {
        receiver_.open_upload(owner, offer, reply);
      },
      mine<PushMachine::Opened>([this](const auto& answer) {
        machine_->opened(answer, retry_after(answer));
        if (answer) uploads_.push_back(answer->upload);
        next();
      }));
}

void Trainer::send() {
  for (unsigned i = 0; i < habits_.connections; ++i) {
    const auto places = machine_->take(kBlockBytes * simulation.random.between(1, 3));
    if (places.empty()) return;
    std::vector<SentBlock> blocks;
    std::uint64_t bytes = 0;
    for (const BlockPlace& place : places) {
      blocks.push_back(block_to_send(offer_, place, some_encoding(simulation.random)));
      bytes += block_length(Model::get().entry_bytes(offer_.sent()[place.entry]), place.block);
    }
    const std::string upload = machine_->upload();
    const auto sent = mine<PushMachine::Counts>([this, bytes](const auto& counts) {
      machine_->sent(counts, bytes, retry_after(counts));
      next();
    });
    network_.send(
        *this, receiver_, fmt::format("PUT {} blocks to {}", blocks.size(), upload),
        blocks.size() * kPiecesOfBlock,
        [this, owner = session_, upload, blocks] {
          return receiver_.open_body(owner, upload, blocks);
        },
        sent);
  }
}

void Trainer::seal() {
  const std::string upload = machine_->upload();
  network_.call<std::string>(
      *this, receiver_, "POST seal " + upload,
      [this, owner = session_, upload](const auto& reply) { receiver_.seal(owner, upload, reply); },
      mine<std::string>([this](const auto& id) {
        if (id && !means(*id)) {
          simulation.violated(rule::kAnswer,
                              fmt::format("{} was sealed as {}", offer_.content->name,
                                          receiver_.library().name_of(*id)));
        }
        machine_->sealed(id, retry_after(id));
        next();
      }));
}

void Trainer::commit() {
  const std::string upload = machine_->upload();
  if (lost_turn_) {
    simulation.violated(rule::kTurn, offer_.content->name + " is committed over another version");
  }
  network_.call<VersionName>(
      *this, receiver_, "POST commit " + upload,
      [this, owner = session_, upload, wish = wish()](const auto& reply) {
        receiver_.commit(owner, upload, wish, reply);
      },
      mine<VersionName>([this](const auto& version) {
        if (version && (!means(version->id) || version->label != wish().label)) {
          simulation.violated(
              rule::kAnswer,
              fmt::format("the commit of {} was answered {} `{}`", offer_.content->name,
                          receiver_.library().name_of(version->id), version->label));
        }
        machine_->committed(version ? Result<std::string>(version->id) : version.error(),
                            retry_after(version));
        next();
      }));
}

void Trainer::drop() {
  const std::string upload = machine_->upload();
  network_.call<bool>(
      *this, receiver_, "DELETE " + upload,
      [this, owner = session_, upload](const auto& reply) {
        const auto aborted = receiver_.abort(owner, upload);
        aborted ? reply(true) : reply(aborted.error());
      },
      mine<bool>([this](const auto&) {
        machine_->dropped();
        next();
      }));
}

// A call that is out of order, or one of long ago. Whatever it is answered, the rules hold.
void Trainer::do_something_odd() {
  Random& random = simulation.random;
  const std::string upload = uploads_.empty() ? "1-1" : uploads_[random.below(uploads_.size())];
  const std::string& owner = session_;
  const auto odd = [&](const char* what, auto handler) {
    network_.call<bool>(*this, receiver_, fmt::format("{} {} (odd)", what, upload), handler,
                        [](const auto&) {});
  };
  const auto said = [](const auto& reply) {
    return [reply](const auto& answer) { answer ? reply(true) : reply(answer.error()); };
  };
  switch (random.below(8)) {
    case 0:
      return odd("DELETE", [=, this](auto reply) { said(reply)(receiver_.abort(owner, upload)); });
    case 1:
      return odd("POST seal",
                 [=, this](auto reply) { receiver_.seal(owner, upload, said(reply)); });
    case 2:
      return odd("POST commit", [=, this, wish = wish()](auto reply) {
        receiver_.commit(owner, upload, wish, said(reply));
      });
    case 3:
      return odd("start", [=, this](auto reply) { said(reply)(receiver_.start(owner)); });
    case 4:
      return odd("update", [=, this](auto reply) { receiver_.update(owner, said(reply)); });
    case 5:
      return odd("finish", [=, this, wish = wish()](auto reply) {
        receiver_.finish(owner, wish, said(reply));
      });
    case 6:
      return roll_back();
    default:
      return send_odd_block(upload);
  }
}

// To what served before, or to something that is not there.
void Trainer::roll_back() {
  const Resident* const retired = receiver_.retired();
  Library& library = receiver_.library();
  const std::string id = retired && simulation.random.chance(70)
                             ? retired->name.id
                             : library.version(simulation.random.below(Library::kCount)).id();
  const std::optional<std::string> expected =
      simulation.random.chance(50) ? std::optional(known_->id()) : std::nullopt;
  network_.call<VersionName>(
      *this, receiver_, "PUT heads/main " + library.name_of(id),
      [=, this, owner = session_](const auto& reply) {
        receiver_.roll_back(owner, id, expected, reply);
      },
      [this, id](const auto& version) {
        if (version && version->id != id) {
          simulation.violated(rule::kRollback, "a rollback was answered with another version");
        }
      });
}

// The bytes of another version, under its own digest or, by a bug of the sender, another one.
void Trainer::send_odd_block(const std::string& upload) {
  // Where no digests were announced, those of another version are as good as any.
  if (!habits_.announced) return;
  Random& random = simulation.random;
  Offer other = offer_;
  other.content = &receiver_.library().version(random.below(Library::kCount));
  const BlockPlace place{0, random.below(3)};
  SentBlock block =
      block_to_send(other, place, random.chance(50) ? some_encoding(random) : Encoding::kIdentity);
  if (random.chance(50)) {
    block.frame.digest = offer_.content->digest({0, block.frame.block});
  }
  network_.send(
      *this, receiver_, fmt::format("PUT a block of {} to {} (odd)", other.content->name, upload),
      kPiecesOfBlock,
      [=, this, owner = session_] { return receiver_.open_body(owner, upload, {block}); },
      [](const auto&) {});
}

void Trainer::end() {
  const bool is_done = machine_->step() == Step::kDone;
  if (is_done) ++done_;
  simulation.trace(name, "{} {}{}", is_done ? "has pushed" : "gives up", offer_.content->name,
                   is_done ? "" : ": " + machine_->error().message());
  machine_.reset();
}

}  // namespace weft::sim
