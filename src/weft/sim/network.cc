#include "weft/sim/internal/network.h"

namespace weft::sim {
namespace {

// How long a server waits for bytes that do not come.
constexpr seconds kHalfOpen{60};

Error broken() {
  return Error(ErrorCode::kDisconnected, "the connection broke");
}

}  // namespace

void Node::crash() {
  if (!up_) return;
  up_ = false;
  simulation.trace(name, "crashes");
  jobs_.clear();
  on_crash();
}

void Node::restart() {
  if (up_) return;
  up_ = true;
  ++instance_;
  simulation.trace(name, "starts as instance {}", instance_);
  on_start();
}

void Node::after(Duration delay, Simulation::Event event) {
  simulation.after(delay, [this, me = instance_, event = std::move(event)] {
    if (is(me)) event();
  });
}

void Node::post(Job job) {
  jobs_.push_back(job);
  if (jobs_.size() == 1) job();
}

void Node::job_done() {
  after(Duration(0), [this] {
    jobs_.pop_front();
    if (jobs_.empty()) return;
    const Job next = jobs_.front();
    next();
  });
}

Duration Network::delay() {
  return simulation_.random.between(milliseconds(1), milliseconds(800));
}

Duration Network::arrival() {
  Random& random = simulation_.random;
  return random.chance(faults.stalled) ? random.between(kPatience / 2, kPatience * 4) : delay();
}

// One body: lives in the events that bring its pieces.
class Network::Stream : public std::enable_shared_from_this<Network::Stream> {
 public:
  Stream(Network& network, Node& from, Node& to, std::string what, std::size_t pieces,
         std::function<Result<std::shared_ptr<Body>>()> open, Reply<PushMachine::Counts> done)
      : network_(network),
        from_(from),
        to_(to),
        me_(from.instance()),
        it_(to.instance()),
        what_(std::move(what)),
        pieces_(pieces),
        open_(std::move(open)),
        done_(std::move(done)) {}

  void start() {
    from_.simulation.trace(from_.name, "sends {}", what_);
    next();
    // The sender gives up at some time, and may not be able to tell the other side.
    network_.simulation_.after(kPatience, [self = shared_from_this()] {
      self->tell(Error(ErrorCode::kDeadline, "no answer came"));
    });
  }

 private:
  void next() {
    network_.simulation_.after(network_.arrival(), [self = shared_from_this()] { self->arrive(); });
  }

  void arrive() {
    if (ended_) return;
    Random& random = network_.simulation_.random;
    if (!to_.is(it_)) return end(broken());
    if (random.chance(network_.faults.cut)) return cut();
    if (!from_.is(me_) && random.chance(60)) {
      // Its sender has crashed: the connection breaks, or stays half open, with nothing to come.
      if (random.chance(50)) return cut();
      return network_.simulation_.after(kHalfOpen, [self = shared_from_this()] {
        if (!self->ended_) self->to_.is(self->it_) ? self->cut() : self->end(broken());
      });
    }
    if (!body_) {
      auto opened = open_();
      if (!opened) return end(opened.error());
      body_ = *opened;
      body_->close = [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->close_soon();
      };
    }
    if (index_ == pieces_) return end(body_->finish());
    const bool flips = random.chance(network_.faults.corrupted);
    const auto flip = static_cast<std::uint8_t>(flips ? 1u << random.below(8) : 0u);
    if (const auto taken = body_->take(index_++, flip); !taken) return end(taken.error());
    next();
  }

  void close_soon() {
    network_.simulation_.after(network_.delay(), [self = shared_from_this()] {
      if (!self->ended_ && self->to_.is(self->it_)) self->cut();
    });
  }

  void cut() {
    from_.simulation.trace(to_.name, "loses the connection of {}", what_);
    if (body_) body_->cut();
    end(broken());
  }

  void end(Result<PushMachine::Counts> result) {
    ended_ = true;
    body_.reset();
    Random& random = network_.simulation_.random;
    if (random.chance(network_.faults.mute)) result = broken();
    network_.simulation_.after(network_.delay(),
                               [self = shared_from_this(), result] { self->tell(result); });
  }

  void tell(const Result<PushMachine::Counts>& result) {
    if (!done_ || !from_.is(me_)) return;
    from_.simulation.trace(from_.name, "hears of {}: {}", what_,
                           result ? "done" : result.error().message());
    std::exchange(done_, nullptr)(result);
  }

  Network& network_;
  Node& from_;
  Node& to_;
  const std::uint64_t me_, it_;
  const std::string what_;
  const std::size_t pieces_;
  const std::function<Result<std::shared_ptr<Body>>()> open_;
  Reply<PushMachine::Counts> done_;
  std::shared_ptr<Body> body_;
  std::size_t index_ = 0;
  bool ended_ = false;
};

// One download: lives in the events that bring its pieces.
class Network::Fetch : public std::enable_shared_from_this<Network::Fetch> {
 public:
  using Open = std::function<Result<std::shared_ptr<Download>>()>;
  using Take = std::function<void(std::size_t, const std::vector<std::uint8_t>&)>;

  Fetch(Network& network, Node& from, Node& to, std::string what, Open open, Take take,
        Reply<bool> done)
      : network_(network),
        from_(from),
        to_(to),
        me_(from.instance()),
        it_(to.instance()),
        what_(std::move(what)),
        open_(std::move(open)),
        take_(std::move(take)),
        done_(std::move(done)) {}

  void start() {
    from_.simulation.trace(from_.name, "gets {}", what_);
    const bool lost = network_.simulation_.random.chance(network_.faults.lost);
    network_.simulation_.after(network_.arrival(), [self = shared_from_this(), lost] {
      lost ? self->end(broken()) : self->open();
    });
  }

 private:
  void open() {
    if (!to_.is(it_)) return end(broken());
    auto opened = open_();
    if (!opened) return end(opened.error());
    download_ = *opened;
    next();
  }

  void next() {
    network_.simulation_.after(network_.arrival(), [self = shared_from_this()] { self->arrive(); });
  }

  void arrive() {
    Random& random = network_.simulation_.random;
    if (!to_.is(it_) || !from_.is(me_) || random.chance(network_.faults.cut)) return end(broken());
    if (index_ == download_->pieces()) return end(true);
    auto piece = download_->read(index_);
    if (!piece) return end(piece.error());
    if (!piece->empty() && random.chance(network_.faults.corrupted)) {
      (*piece)[random.below(piece->size())] ^= static_cast<std::uint8_t>(1u << random.below(8));
    }
    take_(index_++, *piece);
    next();
  }

  void end(const Result<bool>& result) {
    download_.reset();
    if (!from_.is(me_)) return;
    from_.simulation.trace(from_.name, "ends {}: {}", what_,
                           result ? "done" : result.error().message());
    done_(result);
  }

  Network& network_;
  Node& from_;
  Node& to_;
  const std::uint64_t me_, it_;
  const std::string what_;
  const Open open_;
  const Take take_;
  const Reply<bool> done_;
  std::shared_ptr<Download> download_;
  std::size_t index_ = 0;
};

void Network::fetch(Node& from, Node& to, std::string what,
                    std::function<Result<std::shared_ptr<Download>>()> open,
                    std::function<void(std::size_t, const std::vector<std::uint8_t>&)> take,
                    Reply<bool> done) {
  std::make_shared<Fetch>(*this, from, to, std::move(what), std::move(open), std::move(take),
                          std::move(done))
      ->start();
}

void Network::send(Node& from, Node& to, std::string what, std::size_t pieces,
                   std::function<Result<std::shared_ptr<Body>>()> open,
                   Reply<PushMachine::Counts> done) {
  std::make_shared<Stream>(*this, from, to, std::move(what), pieces, std::move(open),
                           std::move(done))
      ->start();
}

}  // namespace weft::sim
