// The processes of transfer_bench.py that are not somebody else's program.
//
//   transfer_worker sink BYTES       receives bare streams into touched memory for ever
//   transfer_worker client FOLDER    holds a checkpoint and a second set in touched memory; obeys
//                                    standard input, one command a line, a JSON object back:
//     bare PORT CONNECTIONS          the bare loop to a sink
//     push URL CONNECTIONS WAY [ID]  WAY: ready (the digests are known before), cold, or staged (as
//                                    ready, but not committed). ID: the version before the last
//                                    `scatter`; what differs little from it goes as sparse blocks
//     pull URL CONNECTIONS ID        into the second set, which must then equal the first
//     change EVERY                   another value in the first element of each EVERY-th block
//     scatter PERMILLE               another value in so many of 1,000 elements, at random; the
//                                    second set keeps what was before

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/core.h>

#include "bare_stream.h"
#include "weft/checkpoint/checkpoint_files.h"
#include "weft/digest/digest.h"
#include "weft/http/client.h"
#include "weft/tensor/weight_set.h"
#include "weft/transfer/publisher.h"
#include "weft/transfer/pull_targets.h"
#include "weft/transfer/puller.h"
#include "weft/transfer/tensor_source.h"

namespace weft::bench {
namespace {

namespace json = boost::json;

void print_line(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

Result<std::shared_ptr<WeightSet>> blocking_load(const std::string& folder) {
  WEFT_TRY(const CheckpointFiles files, CheckpointFiles::blocking_open(folder));
  std::vector<TensorSpec> specs;
  for (const auto& entry : files.tensors()) specs.push_back(entry.spec);
  WEFT_TRY(WeightLayout layout, WeightLayout::make(std::move(specs)));
  WEFT_TRY(auto set,
           WeightSet::blocking_allocate(std::make_shared<WeightLayout>(std::move(layout))));
  for (std::size_t i = 0; i < files.tensors().size(); ++i) {
    WEFT_TRY_VOID(files.blocking_read(files.tensors()[i], set->tensor(i)));
  }
  return set;
}

class Client {
 public:
  Client(std::shared_ptr<WeightSet> weights, std::shared_ptr<WeightSet> other)
      : weights_(std::move(weights)),
        other_(std::move(other)),
        specs_(weights_->layout().tensors()) {}

  Result<json::object> blocking_obey(const std::string& line) {
    std::istringstream words(line);
    std::string command, url, way, id;
    unsigned number = 0;
    words >> command;
    if (command == "bare" && words >> url >> number) return blocking_bare(url, number);
    if (command == "push" && words >> url >> number >> way) {
      words >> id;
      return blocking_push_all(url, number, way, id);
    }
    if (command == "pull" && words >> url >> number >> id) {
      return blocking_pull_all(url, number, id);
    }
    if (command == "change" && words >> number) return change(number);
    if (command == "scatter" && words >> number) return scatter(number);
    return Error(ErrorCode::kInvalidArgument, fmt::format("no such command: {}", line));
  }

 private:
  std::vector<TensorView> views_of(const WeightSet& set) const {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < specs_.size(); ++i) views.push_back({specs_[i], set.tensor(i)});
    return views;
  }

  Result<json::object> blocking_bare(const std::string& port, unsigned connections) {
    // One tensor after the other lies in one arena.
    const auto first = std::as_const(*weights_).tensor(0);
    const std::span<const std::byte> all(first.data(), weights_->layout().payload_bytes());
    WEFT_TRY(const double seconds,
             blocking_send_bare(static_cast<std::uint16_t>(std::stoul(port)), all, connections));
    return json::object{{"seconds", seconds}};
  }

  Result<json::object> blocking_push_all(const std::string& url, unsigned connections,
                                         const std::string& way, const std::string& base) {
    WEFT_TRY(http::Url server, http::Url::parse(url));
    const auto client = http::Client::make(std::move(server));
    WEFT_TRY(const MemorySource source, MemorySource::create(views_of(*weights_)));
    PushOptions options;
    options.connections = connections;
    options.session = "bench";
    options.announce = way == "cold" ? Announce::kNever : Announce::kAlways;
    options.commit = way != "staged";
    if (way != "cold") {
      WEFT_TRY_VOID(blocking_hash(source));
      options.digests = &digests_;
    }
    WEFT_TRY(const MemorySource before, MemorySource::create(views_of(*other_)));
    if (!base.empty()) {
      options.base = base;
      options.base_source = &before;
    }
    WEFT_TRY(const PushReport report, blocking_push(*client, source, options));
    return json::object{{"seconds", report.total_seconds},
                        {"id", report.id},
                        {"stall_us", report.stall_us},
                        {"sent_bytes", report.sent_bytes}};
  }

  // What has changed since the last time, so that a small change is soon ready.
  Result<void> blocking_hash(const MemorySource& source) {
    if (digests_.empty()) {
      WEFT_TRY(digests_, blocking_hash_source(source, std::thread::hardware_concurrency()));
    }
    for (const auto& [tensor, at] : std::exchange(stale_, {})) {
      const auto bytes = std::as_const(*weights_).tensor(tensor);
      const auto block = bytes.subspan(at, std::min<std::size_t>(kBlockBytes, bytes.size() - at));
      digests_[tensor][at / kBlockBytes] = block_digest(bytes.size(), at / kBlockBytes, block);
    }
    return {};
  }

  Result<json::object> blocking_pull_all(const std::string& url, unsigned connections,
                                         const std::string& id) {
    WEFT_TRY(http::Url server, http::Url::parse(url));
    const auto client = http::Client::make(std::move(server));
    PullOptions options;
    options.connections = connections;
    MemoryTarget target(other_);
    WEFT_TRY(const PullReport report, blocking_pull(*client, id, target, options));
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const auto pushed = weights_->tensor(i);
      if (std::memcmp(pushed.data(), other_->tensor(i).data(), pushed.size()) != 0) {
        return Error(ErrorCode::kCorrupt,
                     specs_[i].name + ": what was pulled is not what was pushed");
      }
    }
    return json::object{{"seconds", report.seconds}, {"id", report.id}};
  }

  json::object change(unsigned every) {
    ++changes_;
    std::uint64_t seen = 0, changed = 0;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const auto bytes = weights_->tensor(i);
      for (std::size_t at = 0; at < bytes.size(); at += kBlockBytes) {
        if (seen++ % every != 0) continue;
        // A bf16 near one, never a value that was here before: 7 bits of mantissa count, the next
        // element carries on.
        bytes[at] = static_cast<std::byte>(changes_ & 0x7F);
        bytes[at + 2] = static_cast<std::byte>(changes_ >> 7 & 0x7F);
        stale_.emplace(i, at);
        ++changed;
      }
    }
    return json::object{{"blocks", seen}, {"changed", changed}};
  }

  json::object scatter(unsigned permille) {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      std::ranges::copy(weights_->tensor(i), other_->tensor(i).begin());
    }
    std::geometric_distribution<std::size_t> gap(permille / 1000.0);
    std::uint64_t changed = 0;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const auto bytes = weights_->tensor(i);
      for (std::size_t at = 2 * gap(random_); at < bytes.size(); at += 2 + 2 * gap(random_)) {
        bytes[at] ^= std::byte{1};  // the last bit of a bf16's mantissa
        ++changed;
      }
    }
    digests_.clear();  // of hardly a block it is right
    return {{"changed", changed}};
  }

  const std::shared_ptr<WeightSet> weights_, other_;
  const std::vector<TensorSpec> specs_;
  unsigned changes_ = 0;
  std::mt19937 random_{1};
  VersionDigests digests_;                               // of the weights; empty: not known
  std::set<std::pair<std::size_t, std::size_t>> stale_;  // tensors, offsets: blocks where it is not
};

Result<void> blocking_sink(std::size_t size_bytes) {
  WEFT_TRY(Arena memory, Arena::blocking_allocate(size_bytes));
  return blocking_receive_for_ever(memory.bytes(),
                                   [](std::uint16_t port) { print_line(fmt::format("{}", port)); });
}

Result<void> blocking_client(const std::string& folder) {
  WEFT_TRY(auto weights, blocking_load(folder));
  WEFT_TRY(auto other, blocking_load(folder));
  Client client(std::move(weights), std::move(other));
  print_line("ready");
  for (std::string line; std::getline(std::cin, line);) {
    const auto answer = client.blocking_obey(line);
    print_line(
        json::serialize(answer ? *answer : json::object{{"error", answer.error().message()}}));
  }
  return {};
}

}  // namespace
}  // namespace weft::bench

int main(int count, char** arguments) {
  const std::string mode = count == 3 ? arguments[1] : "";
  if (mode != "sink" && mode != "client") {
    std::fprintf(stderr, "usage: transfer_worker {sink BYTES|client FOLDER}\n");
    return 2;
  }
  const auto done = mode == "sink" ? weft::bench::blocking_sink(std::stoull(arguments[2]))
                                   : weft::bench::blocking_client(arguments[2]);
  if (done) return 0;
  std::fprintf(stderr, "transfer_worker: %s\n", done.error().message().c_str());
  return 1;
}
