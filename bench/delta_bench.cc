// What a delta costs in bytes and in time, beside what others send. See docs/performance.md.
//
// usage: delta_bench [--mb N] [--dense-mb N] [--rival-tiles N]
//        delta_bench files BASE NEXT            two files of bf16 elements, as versions
//        delta_bench write BASE NEXT ELEMENTS   such files, of tier B
//
// bf16 pairs of a model of training (delta_pairs.h), N megabytes at 0.593 % changed and --dense-mb
// at each other density, in tiles of 64 MiB in blocks of 8 MiB. All rivals run on one thread, tile
// by tile in turns, and each must give the new tile exactly. The last line is `BENCH {json}`.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <sys/mman.h>

#include "delta_pairs.h"
#include "delta_rivals.h"
#include "weft/codec/delta_codec.h"
#include "weft/digest/digest.h"

namespace weft::bench {
namespace {

constexpr std::size_t kFrameBytes = 48;  // of a block on the wire, docs/protocol.md

// Of this thread: others on the machine do not count, as far as they leave the caches and the
// memory alone.
double now_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void expect_equal(View got, View expected, const char* who) {
  if (got.size() != expected.size() || std::memcmp(got.data(), expected.data(), got.size()) != 0) {
    fail(fmt::format("{} does not give the new tile", who));
  }
}

// Bytes and rates of one way to send, a sample a tile.
struct Figures {
  std::uint64_t wire_bytes = 0, model_bytes = 0, changed = 0;
  std::vector<double> encode_gb_s, decode_gb_s;

  double bytes_per_changed() const {
    return static_cast<double>(wire_bytes) / static_cast<double>(changed);
  }
};

double median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::ranges::sort(v);
  return v[v.size() / 2];
}
std::string spread(const std::vector<double>& v) {
  if (v.empty()) return "-";
  return fmt::format("{:.2f} ({:.2f} - {:.2f})", median(v), *std::ranges::min_element(v),
                     *std::ranges::max_element(v));
}

// Touched memory in huge pages where there are any, as weights have it (tensor/arena.h).
class Pages {
 public:
  explicit Pages(std::size_t size_bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(std::size_t{2} << 20, size_bytes))),
        size_bytes_(size_bytes) {
    if (data_ == nullptr) fail("no memory");
    ::madvise(data_, size_bytes, MADV_HUGEPAGE);
    std::memset(data_, 1, size_bytes);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { std::free(data_); }

  std::span<std::byte> bytes() const { return {data_, size_bytes_}; }
  std::span<std::uint16_t> elements() const {
    return {reinterpret_cast<std::uint16_t*>(data_), size_bytes_ / 2};
  }

 private:
  std::byte* data_;
  std::size_t size_bytes_;
};

// Which change given the base's exponent, and by how much given it: the bound that is compared
// with.
class Entropy {
 public:
  void add(const Tile& tile) {
    for (std::size_t i = 0; i < tile.base.size(); ++i) {
      const unsigned exponent = tile.base[i] >> 7 & 255;
      ++all_[exponent];
      if (tile.base[i] == tile.next[i]) continue;
      ++changed_[exponent];
      ++steps_[exponent][ordered(tile.next[i]) - ordered(tile.base[i])];
    }
  }
  double bytes_per_changed() const {
    double bits = 0, total = 0;
    for (std::size_t e = 0; e < all_.size(); ++e) {
      const auto n = static_cast<double>(all_[e]), k = static_cast<double>(changed_[e]);
      total += k;
      bits += n_log_n(n) - n_log_n(n - k);  // which, but for n_log_n(k), which the steps have too
      for (const auto& [step, count] : steps_[e]) bits -= n_log_n(static_cast<double>(count));
    }
    return bits / 8 / total;
  }

 private:
  static int ordered(std::uint16_t x) { return x < 0x8000 ? x : 0x7FFF - x; }
  static double n_log_n(double n) { return n == 0 ? 0 : n * std::log2(n); }

  std::array<std::uint64_t, 256> all_{}, changed_{};
  std::array<std::map<int, std::uint64_t>, 256> steps_;
};

void add_sample(Figures& f, const Tile& tile, std::size_t wire_bytes, double encode_s,
                double decode_s) {
  const auto gb = static_cast<double>(tile.next.size() * 2) / 1e9;
  f.wire_bytes += wire_bytes;
  f.model_bytes += tile.next.size() * 2;
  f.changed += tile.changed;
  f.encode_gb_s.push_back(gb / encode_s);
  f.decode_gb_s.push_back(gb / decode_s);
}

struct Ours {
  Figures codec;
  std::vector<double> verify_gb_s, publish_gb_s, scatter_ns, memcpy_gb_s;
};

void run_ours(const Tile& tile, std::span<std::byte> out, Ours& ours) {
  const View base = tile.base_bytes(), next = tile.next_bytes();
  const auto gb = static_cast<double>(next.size()) / 1e9;
  const std::size_t blocks = block_count(next.size());
  const auto block_of = [](auto bytes, std::size_t i) {
    const std::size_t at = i * kBlockBytes;
    return bytes.subspan(at, std::min<std::size_t>(kBlockBytes, bytes.size() - at));
  };
  std::vector<Bytes> payloads(blocks);
  double begin = now_s();
  for (std::size_t i = 0; i < blocks; ++i) {
    payloads[i] = encode_delta(block_of(base, i), block_of(next, i), ElemKind::kBF16);
  }
  const double encode_s = now_s() - begin;
  std::size_t wire_bytes = 0;
  for (const Bytes& payload : payloads) wire_bytes += payload.size() + kFrameBytes;

  std::vector<Digest> digests(blocks);
  begin = now_s();
  for (std::size_t i = 0; i < blocks; ++i) {
    digests[i] = block_digest(next.size(), i, block_of(next, i));
  }
  ours.publish_gb_s.push_back(gb / (encode_s + now_s() - begin));

  begin = now_s();
  for (std::size_t i = 0; i < blocks; ++i) {
    if (!decode_delta(payloads[i], block_of(base, i), ElemKind::kBF16, block_of(out, i))) {
      fail("a payload of ours is refused");
    }
  }
  add_sample(ours.codec, tile, wire_bytes, encode_s, now_s() - begin);
  expect_equal(out, next, "weft");

  std::ranges::fill(out, std::byte{0});
  begin = now_s();
  for (std::size_t i = 0; i < blocks; ++i) {
    const auto block = block_of(out, i);
    if (!decode_delta(payloads[i], block_of(base, i), ElemKind::kBF16, block) ||
        block_digest(next.size(), i, block) != digests[i]) {
      fail("a payload of ours is refused, or wrong");
    }
  }
  ours.verify_gb_s.push_back(gb / (now_s() - begin));

  std::vector<DeltaPatch> patches;
  for (std::size_t i = 0; i < blocks; ++i) {
    patches.push_back(resolve_delta(payloads[i], block_of(base, i), ElemKind::kBF16).value());
  }
  begin = now_s();
  std::memcpy(out.data(), base.data(), base.size());  // what the scatter begins from, too
  ours.memcpy_gb_s.push_back(gb / (now_s() - begin));
  Bytes undo(next.size());  // touched
  begin = now_s();
  for (std::size_t i = 0; i < blocks; ++i) {
    apply_sparse(patches[i].view(ElemKind::kBF16), block_of(out, i), &undo);
  }
  if (tile.changed > 0) {
    ours.scatter_ns.push_back(1e9 * (now_s() - begin) / static_cast<double>(tile.changed));
  }
  expect_equal(out, next, "weft in place");
}

struct RivalFigures {
  Rival rival;
  Figures figures;
};

void run_rival(RivalFigures& run, const Tile& tile, std::span<std::byte> out) {
  std::ranges::fill(out, std::byte{0});
  double begin = now_s();
  const Bytes payload = run.rival.encode(tile);
  const double encode_s = now_s() - begin;
  begin = now_s();
  run.rival.decode(payload, tile, out);
  add_sample(run.figures, tile, payload.size(), encode_s, now_s() - begin);
  expect_equal(out, tile.next_bytes(), run.rival.name);
}

// All ways, over the tiles of one pair of versions.
class Density {
 public:
  Density() {
    for (Rival& rival : make_rivals()) rivals_.push_back({std::move(rival), {}});
  }

  // `out`: touched memory as long as the tile.
  void add(Tile tile, std::span<std::byte> out, bool with_rivals) {
    tile.changed = 0;
    for (std::size_t i = 0; i < tile.base.size(); ++i) tile.changed += tile.base[i] != tile.next[i];
    entropy_.add(tile);
    run_ours(tile, out, ours_);
    if (!with_rivals) return;
    for (RivalFigures& rival : rivals_) run_rival(rival, tile, out);
  }

  const Ours& ours() const { return ours_; }
  std::span<const RivalFigures> rivals() const { return rivals_; }
  double entropy() const { return entropy_.bytes_per_changed(); }
  double vs_entropy() const { return ours_.codec.bytes_per_changed() / entropy(); }
  double share() const {
    return static_cast<double>(ours_.codec.changed) /
           static_cast<double>(ours_.codec.model_bytes / 2);
  }

 private:
  Ours ours_;
  std::vector<RivalFigures> rivals_;
  Entropy entropy_;
};

// Memory for two tiles and for what comes out of them.
struct Memory {
  explicit Memory(std::size_t elements)
      : base(elements * 2), next(elements * 2), out(elements * 2) {}
  Tile tile() const { return {base.elements(), next.elements()}; }
  Pages base, next, out;
};

Density measure(const Training& training, std::size_t tiles, std::size_t rival_tiles) {
  const Moves moves = simulate_moves(training);
  const Memory memory(kTileElements);
  const Tile tile = memory.tile();
  Density out;
  for (std::size_t t = 0; t < tiles; ++t) {
    make_tile(moves, t, kTileElements, tile.base.data(), tile.next.data());
    out.add(tile, memory.out.bytes(), t < rival_tiles);
  }
  return out;
}

void print(const std::string& what, const Density& d) {
  fmt::print("{}: {:.3f} % changed, entropy {:.3f} bytes per changed\n", what, 100 * d.share(),
             d.entropy());
  const auto line = [](const char* name, const Figures& f) {
    fmt::print(
        "  {:16} {:6.3f} bytes per changed, {:7.4f} % of the model, encode {} GB/s, decode {} "
        "GB/s\n",
        name, f.bytes_per_changed(),
        100.0 * static_cast<double>(f.wire_bytes) / static_cast<double>(f.model_bytes),
        spread(f.encode_gb_s), spread(f.decode_gb_s));
  };
  const Ours& ours = d.ours();
  line("weft", ours.codec);
  fmt::print(
      "    {:.3f} of the entropy; with digests: decode {}, publish {} GB/s; in place {} ns per "
      "changed; memcpy {} GB/s\n",
      d.vs_entropy(), spread(ours.verify_gb_s), spread(ours.publish_gb_s), spread(ours.scatter_ns),
      spread(ours.memcpy_gb_s));
  for (const RivalFigures& rival : d.rivals()) {
    if (rival.figures.changed > 0) line(rival.rival.name, rival.figures);
  }
  std::fflush(stdout);
}

void print(const Training& training, const Density& d) {
  print(fmt::format("lr {:g}, {} steps, drift {:g}", training.learning_rate,
                    training.steps_per_publish, training.drift),
        d);
}

// Learning rate, steps and drift of docs/performance.md; the first is tier B.
constexpr Training kTierB{1e-6, 1, 0};
constexpr std::array<Training, 8> kOthers{{{2e-7, 1, 0},
                                           {5e-7, 1, 0},
                                           {1e-6, 1, 0.3},
                                           {3e-6, 1, 0},
                                           {1e-6, 8, 0},
                                           {1e-5, 1, 0},
                                           {3e-6, 4, 0.3},
                                           {5e-5, 1, 0}}};

void report(const char* bench, const Density& b, double worst, double worst_share) {
  const Figures &xor1 = b.rivals()[0].figures, &nemo_rl = b.rivals()[2].figures;
  const Figures& ours = b.ours().codec;
  const double encode = median(ours.encode_gb_s), decode = median(ours.decode_gb_s);
  const double copy = median(b.ours().memcpy_gb_s);
  fmt::print(
      "BENCH {{\"bench\": \"{}\", \"changed_percent\": {:.3f}, \"bytes_per_changed\": {:.4f}, "
      "\"entropy_bytes_per_changed\": {:.4f}, \"worst_vs_entropy\": {:.4f}, "
      "\"worst_at_percent\": {:.3f}, \"encode_gb_s\": {:.2f}, \"decode_apply_gb_s\": {:.2f}, "
      "\"decode_apply_verify_gb_s\": {:.2f}, \"publish_gb_s\": {:.2f}, \"memcpy_gb_s\": {:.2f}, "
      "\"encode_vs_memcpy\": {:.3f}, \"decode_vs_memcpy\": {:.3f}, "
      "\"scatter_ns_per_changed\": {:.2f}, \"vs_xor_zstd_bytes\": {:.2f}, "
      "\"vs_xor_zstd_encode\": {:.2f}, \"vs_nemo_bytes\": {:.2f}}}\n",
      bench, 100 * b.share(), ours.bytes_per_changed(), b.entropy(), worst, 100 * worst_share,
      encode, decode, median(b.ours().verify_gb_s), median(b.ours().publish_gb_s), copy,
      encode / copy, decode / copy, median(b.ours().scatter_ns),
      xor1.bytes_per_changed() / ours.bytes_per_changed(), encode / median(xor1.encode_gb_s),
      nemo_rl.bytes_per_changed() / ours.bytes_per_changed());
}

std::size_t tiles_of(std::size_t megabytes) {
  return std::max<std::size_t>(1, megabytes * 1'000'000 / (kTileElements * 2));
}

void run(std::size_t megabytes, std::size_t dense_megabytes, std::size_t rival_tiles) {
  const Density b = measure(kTierB, tiles_of(megabytes), std::max<std::size_t>(rival_tiles, 1));
  print(kTierB, b);
  double worst = b.vs_entropy(), worst_share = b.share();
  if (dense_megabytes > 0) {
    for (const Training& training : kOthers) {
      const Density d =
          measure(training, tiles_of(dense_megabytes), std::min<std::size_t>(rival_tiles, 1));
      print(training, d);
      if (d.vs_entropy() > worst) worst = d.vs_entropy(), worst_share = d.share();
    }
  }
  report("delta", b, worst, worst_share);
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
File open_file(const char* path, const char* mode) {
  File file(std::fopen(path, mode), &std::fclose);
  if (!file) fail(fmt::format("{}: cannot open", path));
  return file;
}

// Two files of bf16 elements, equally long, as consecutive versions.
void compare_files(const char* base_path, const char* next_path) {
  const File base = open_file(base_path, "rb"), next = open_file(next_path, "rb");
  const Memory memory(kTileElements);
  Density d;
  while (true) {
    Tile tile = memory.tile();
    const std::size_t count = std::fread(tile.base.data(), 2, tile.base.size(), base.get());
    if (count != std::fread(tile.next.data(), 2, tile.next.size(), next.get())) {
      fail(fmt::format("{} and {} are not equally long", base_path, next_path));
    }
    if (count == 0) break;
    tile.base = tile.base.first(count);
    tile.next = tile.next.first(count);
    d.add(tile, memory.out.bytes().first(count * 2), true);
  }
  if (d.ours().codec.changed == 0) fail("nothing changed");
  print(next_path, d);
  report("delta_files", d, d.vs_entropy(), d.share());
}

// Writes tier B's pair of `elements` elements. A multiple of a row's 4,096.
void write_files(const char* base_path, const char* next_path, std::size_t elements) {
  const File base = open_file(base_path, "wb"), next = open_file(next_path, "wb");
  const Moves moves = simulate_moves(kTierB);
  const Memory memory(kTileElements);
  const Tile tile = memory.tile();
  for (std::size_t t = 0; elements > 0; ++t) {
    const std::size_t count = std::min(elements, kTileElements);
    make_tile(moves, t, count, tile.base.data(), tile.next.data());
    if (std::fwrite(tile.base.data(), 2, count, base.get()) != count ||
        std::fwrite(tile.next.data(), 2, count, next.get()) != count) {
      fail(fmt::format("{}: cannot write", base_path));
    }
    elements -= count;
  }
}

void usage() {
  fail(
      "usage: delta_bench [--mb N] [--dense-mb N] [--rival-tiles N]\n"
      "       delta_bench files BASE NEXT\n"
      "       delta_bench write BASE NEXT ELEMENTS");
}

}  // namespace
}  // namespace weft::bench

int main(int count, char** arguments) {
  using namespace weft::bench;
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (words.size() == 3 && words[0] == "files") {
    compare_files(arguments[2], arguments[3]);
    return 0;
  }
  if (words.size() == 4 && words[0] == "write") {
    write_files(arguments[2], arguments[3], std::stoul(words[3]));
    return 0;
  }
  std::map<std::string, std::size_t> flags = {
      {"--mb", 1000}, {"--dense-mb", 256}, {"--rival-tiles", 3}};
  for (std::size_t i = 0; i < words.size(); i += 2) {
    if (!flags.contains(words[i]) || i + 1 == words.size()) usage();
    flags[words[i]] = std::strtoul(words[i + 1].c_str(), nullptr, 10);
  }
  run(flags["--mb"], flags["--dense-mb"], flags["--rival-tiles"]);
}
