// A program of its own, because it replaces operator new: steps that generate allocate nothing.

#include <atomic>
#include <cstdlib>
#include <future>
#include <new>

#include <gtest/gtest.h>

#include "weft/engine/engine.h"
#include "weft/engine/tiny_model.h"

namespace {

std::atomic<bool> counting = false;
std::atomic<std::uint64_t> allocations = 0;

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (counting) ++allocations;
  void* const memory =
      std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace weft {
namespace {

// Counts allocations between its 20th and its 200th token.
class CountingSink final : public SequenceSink {
 public:
  explicit CountingSink(bool counts) : counts_(counts) {}
  void on_prompt(std::vector<ScoredToken>, std::shared_ptr<const VersionName>) override {}
  void on_token(TokenEvent) override {
    ++tokens_;
    if (counts_ && tokens_ == 20) counting = true;
    if (counts_ && tokens_ == 200) counting = false;
  }
  void on_finish(FinishEvent) override { ended_.set_value(); }
  void blocking_finish() { ended_.get_future().get(); }

 private:
  const bool counts_;
  std::uint64_t tokens_ = 0;
  std::promise<void> ended_;
};

TEST(DecodeStep, AllocatesNothing) {
  const auto config = testing::tiny_config();
  const auto engine =
      Engine::create(config, {.threads = 2}, testing::tiny_weights(config, DType::kBF16, 1), {})
          .value();
  testing::blocking_pause(*engine, PauseMode::kKeep);
  std::vector<std::shared_ptr<CountingSink>> sinks;
  for (std::uint32_t i = 0; i < 8; ++i) {
    SamplingParams params = testing::greedy(220);
    if (i % 2 == 0) params.temperature = 1;
    if (i % 4 == 0) params.top_p = 0.9;
    if (i % 3 == 0) params.repetition_penalty = 1.1;
    params.logprobs = 0;
    sinks.push_back(std::make_shared<CountingSink>(i == 0));
    engine->submit({{i, 1, 2}, params, sinks.back(), ""}).value();
  }
  engine->resume();
  for (const auto& sink : sinks) sink->blocking_finish();
  EXPECT_EQ(allocations, 0u);
}

}  // namespace
}  // namespace weft
