#include "weft/sim/schedule.h"

#include <array>
#include <memory>

#include <fmt/core.h>

#include "weft/sim/internal/puller.h"
#include "weft/sim/internal/rules.h"
#include "weft/sim/internal/store.h"
#include "weft/sim/internal/trainer.h"

namespace weft::sim {
namespace {

// Shorter than a seal may take.
constexpr seconds kShortLease{4};
constexpr seconds kFaultyTime{300};
// After which all leases are over and the last stalled connection has ended.
constexpr seconds kQuietTime{400};
constexpr seconds kLastPushTime{120};

class Schedule {
 public:
  Schedule(std::uint64_t seed, bool tracing)
      : simulation_(seed, tracing),
        network_(simulation_),
        receiver_(simulation_, library_, "receiver", rules(simulation_.random)) {
    choose_faults();
    Random& random = simulation_.random;
    const bool two = random.chance(70);
    const bool shares = random.chance(25);
    for (unsigned i = 0; i < (two ? 2u : 1u); ++i) {
      add_trainer(habits(i, i == 0 && shares ? 2 : 1));
      push_now_and_then(*trainers_.back());
    }
    if (shares) {
      auto same = habits(0, 2);
      same.announced = trainers_.front()->announces();
      same.writer = 1;
      second_writer_ = &add_trainer(same);
    }
    for (Puller& puller : pullers_) {
      if (random.chance(60)) pull_now_and_then(puller);
    }
    if (crashes_) {
      for (const auto& trainer : trainers_) crash_now_and_then(*trainer);
      if (random.chance(50)) crash_now_and_then(receiver_);
    }
    if (random.chance(20)) leap_now_and_then();
    if (random.chance(50)) use_store();
    if (crashes_) crash_now_and_then(store_);
  }

  Outcome run() {
    simulation_.run_until(Instant(kFaultyTime));
    is_quiet_ = true;
    network_.faults = {};
    if (!receiver_.up()) receiver_.restart();
    if (!store_.up()) store_.restart();
    for (const auto& trainer : trainers_) {
      if (!trainer->up()) trainer->restart();
    }
    simulation_.run_until(Instant(kFaultyTime + kQuietTime));
    if (!simulation_.failed()) {
      receiver_.check_idle();
      store_.check_idle();
    }
    last_push();
    simulation_.drop_events();
    return {simulation_.events(), simulation_.failure(), simulation_.lines()};
  }

 private:
  static ReceiverRules rules(Random& random) {
    ReceiverRules rules;
    rules.lease = random.chance(25) ? kShortLease : Receiver::kLease;
    rules.patch_mode = random.chance(20);
    rules.max_patch_bytes = random.chance(20) ? 600 : 10'000;
    rules.on_third = static_cast<OnThird>(random.below(3));
    return rules;
  }

  void choose_faults() {
    Random& random = simulation_.random;
    const auto some = [&](unsigned most) {
      return random.chance(50) ? 0u : static_cast<unsigned>(random.below(most + 1));
    };
    network_.faults = {.lost = some(15),
                       .mute = some(15),
                       .twice = some(15),
                       .stalled = some(5),
                       .cut = some(3),
                       .corrupted = some(2)};
    crashes_ = random.chance(50);
  }

  Trainer& add_trainer(const Trainer::Habits& habits) {
    auto name = fmt::format("trainer-{}", trainers_.size());
    trainers_.push_back(
        std::make_unique<Trainer>(simulation_, network_, receiver_, std::move(name), habits));
    return *trainers_.back();
  }

  Trainer::Habits habits(unsigned index, unsigned writers) {
    Random& random = simulation_.random;
    return {.session = fmt::format("push-{}", index),
            .announced = random.chance(70),
            .connections = static_cast<unsigned>(random.between(1, 3)),
            .odd = random.chance(50) ? 0u : static_cast<unsigned>(random.below(40)),
            .based = receiver_.patches() ? 95u
                     : random.chance(50) ? 0u
                                         : 50u,
            .partial = 50,
            .finishes = random.chance(30),
            .writers = writers};
  }

  void push_now_and_then(Trainer& trainer) {
    Random& random = simulation_.random;
    simulation_.after(random.between(seconds(0), seconds(40)), [this, &trainer] {
      if (is_quiet_) return;
      if (trainer.up() && (trainer.idle() || simulation_.random.chance(5))) {
        trainer.push(library_.version(simulation_.random.below(Library::kCount)));
        if (second_writer_ != nullptr && &trainer == trainers_.front().get()) join_soon();
      }
      push_now_and_then(trainer);
    });
  }

  void join_soon() {
    simulation_.after(simulation_.random.between(seconds(0), seconds(4)), [this] {
      if (second_writer_->up()) second_writer_->join(*trainers_.front());
    });
  }

  // What serves, mostly; also what is gone, or never was there.
  void pull_now_and_then(Puller& puller) {
    simulation_.after(simulation_.random.between(seconds(0), seconds(60)), [this, &puller] {
      if (is_quiet_) return;
      if (puller.up() && puller.idle()) {
        const Resident* const retired = receiver_.retired();
        const bool old = retired != nullptr && simulation_.random.chance(30);
        puller.pull(old ? retired->name.id : receiver_.serving().id);
      }
      pull_now_and_then(puller);
    });
  }

  void crash_now_and_then(Node& node) {
    Random& random = simulation_.random;
    simulation_.after(random.between(seconds(0), seconds(150)), [this, &node] {
      if (is_quiet_) return;
      node.crash();
      simulation_.after(simulation_.random.between(seconds(0), seconds(20)),
                        [&node] { node.restart(); });
      crash_now_and_then(node);
    });
  }

  void use_store() {
    simulation_.after(simulation_.random.between(seconds(0), seconds(4)), [this] {
      if (is_quiet_) return;
      if (store_.up()) store_.do_something();
      use_store();
    });
  }

  void leap_now_and_then() {
    Random& random = simulation_.random;
    simulation_.after(random.between(seconds(10), seconds(150)), [this] {
      if (is_quiet_) return;
      simulation_.trace("clock", "leaps");
      simulation_.leap(simulation_.random.between(seconds(1), 2 * Receiver::kLease));
      leap_now_and_then();
    });
  }

  // Liveness: a correct push works, with no restart of the receiver.
  void last_push() {
    if (simulation_.failed()) return;
    const std::uint64_t instance = receiver_.instance();
    const Content* content = &library_.version(simulation_.random.below(Library::kCount));
    Trainer last(simulation_, network_, receiver_, "last",
                 {.session = "last",
                  .announced = true,
                  .connections = 1,
                  .based = receiver_.patches() ? 100u : 0u});
    last.know(*library_.try_find(receiver_.serving().id));
    last.push(*content);
    simulation_.run_until(simulation_.now() + kLastPushTime);
    if (simulation_.failed()) return;
    if (last.done() != 1 || !last.means(receiver_.serving().id) ||
        receiver_.instance() != instance) {
      simulation_.violated(rule::kLiveness, fmt::format("{} could not be pushed", content->name));
    }
    receiver_.check_idle();
    if (!receiver_.patches()) last_pull();
  }

  void last_pull() {
    Puller last(simulation_, network_, library_, {&cache_, &receiver_}, "last");
    last.pull(receiver_.serving().id);
    simulation_.run_until(simulation_.now() + kLastPushTime);
    if (!simulation_.failed() && last.last() == nullptr) {
      simulation_.violated(rule::kLiveness, "what serves could not be pulled");
    }
  }

  Simulation simulation_;
  Network network_;
  Library library_;
  Receiver receiver_;
  Store store_{simulation_, library_, "store"};
  Cache cache_{simulation_, network_, receiver_, "cache"};
  std::array<Puller, 2> pullers_{
      {{simulation_, network_, library_, {&receiver_}, "puller-0"},
       {simulation_, network_, library_, {&cache_, &receiver_}, "puller-1"}}};
  std::vector<std::unique_ptr<Trainer>> trainers_;
  Trainer* second_writer_ = nullptr;  // of the first one's uploads
  bool crashes_ = false;
  bool is_quiet_ = false;
};

}  // namespace

Outcome run_schedule(std::uint64_t seed, bool tracing) {
  return Schedule(seed, tracing).run();
}

}  // namespace weft::sim
