// What a delta costs in bytes and in time, beside what others send. See docs/performance.md.
//
// usage: delta_bench [--mb N] [--dense-mb N] [--rival-tiles N]
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
#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <sys/mman.h>
#include <zstd.h>

#include "delta_pairs.h"
#include "weft/codec/delta_codec.h"
#include "weft/digest/digest.h"

namespace weft::bench {
namespace {

using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

constexpr std::size_t kFrameBytes = 48;  // of a block on the wire, docs/protocol.md

// Of this thread: others on the machine do not count, as far as they leave the caches and the
// memory alone.
double now_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

[[noreturn]] void fail(const std::string& what) {
  fmt::print(stderr, "delta_bench: {}\n", what);
  std::exit(1);
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

struct Tile {
  Pages base_pages{kTileElements * 2}, next_pages{kTileElements * 2};
  std::span<std::uint16_t> base = base_pages.elements(), next = next_pages.elements();
  std::uint64_t changed = 0;

  View base_bytes() const { return base_pages.bytes(); }
  View next_bytes() const { return next_pages.bytes(); }
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

// --- the others: what they would send for the tile, and the tile from that

using Encode = std::function<Bytes(const Tile&)>;
using Decode = std::function<void(const Bytes&, const Tile&, std::span<std::byte> out)>;

Bytes zstd(View bytes, int level) {
  Bytes out(ZSTD_compressBound(bytes.size()));
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), level));
  return out;
}
Bytes unzstd(View bytes) {
  Bytes out(ZSTD_getFrameContentSize(bytes.data(), bytes.size()));
  if (ZSTD_decompress(out.data(), out.size(), bytes.data(), bytes.size()) != out.size()) {
    fail("zstd");
  }
  return out;
}

void xor_into(View a, View b, std::span<std::byte> out) {
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = a[i] ^ b[i];
}

// slime, stitch, SkyRL, ModelExpress: the whole tensor, XORed, through zstd.
Encode xor_zstd(int level) {
  return [level](const Tile& tile) {
    Bytes x(tile.next.size() * 2);
    xor_into(tile.base_bytes(), tile.next_bytes(), x);
    return zstd(x, level);
  };
}
void undo_xor_zstd(const Bytes& payload, const Tile& tile, std::span<std::byte> out) {
  xor_into(unzstd(payload), tile.base_bytes(), out);
}

template <typename T>
void append(Bytes& bytes, const std::vector<T>& values) {
  const View more = std::as_bytes(std::span(values));
  bytes.insert(bytes.end(), more.begin(), more.end());
}

// NeMo-RL: gaps in 16 bits (32 where one does not fit) and XORed values, through zstd-1.
Bytes nemo(const Tile& tile) {
  std::vector<std::uint32_t> gaps;
  std::vector<std::uint16_t> values;
  std::uint32_t last = 0, widest = 0;
  for (std::size_t i = 0; i < tile.base.size(); ++i) {
    if (tile.base[i] == tile.next[i]) continue;
    gaps.push_back(static_cast<std::uint32_t>(i) - last);
    widest = std::max(widest, gaps.back());
    last = static_cast<std::uint32_t>(i) + 1;
    values.push_back(tile.base[i] ^ tile.next[i]);
  }
  Bytes bytes(1, std::byte{widest < 65536});
  if (widest < 65536) {
    append(bytes, std::vector<std::uint16_t>(gaps.begin(), gaps.end()));
  } else {
    append(bytes, gaps);
  }
  append(bytes, values);
  return zstd(bytes, 1);
}
template <typename Gap>
void undo_gaps(View bytes, const Tile& tile, std::uint16_t* out) {
  const std::size_t count = bytes.size() / (sizeof(Gap) + 2);
  std::size_t at = 0;
  for (std::size_t i = 0; i < count; ++i, ++at) {
    Gap gap;
    std::uint16_t value;
    std::memcpy(&gap, bytes.data() + i * sizeof(Gap), sizeof(Gap));
    std::memcpy(&value, bytes.data() + count * sizeof(Gap) + i * 2, 2);
    at += gap;
    out[at] = tile.base[at] ^ value;
  }
}
void undo_nemo(const Bytes& payload, const Tile& tile, std::span<std::byte> out) {
  const Bytes bytes = unzstd(payload);
  std::memcpy(out.data(), tile.base.data(), out.size());
  auto* const elements = reinterpret_cast<std::uint16_t*>(out.data());
  const View rest = View(bytes).subspan(1);
  if (bytes[0] == std::byte{1}) {
    undo_gaps<std::uint16_t>(rest, tile, elements);
  } else {
    undo_gaps<std::uint32_t>(rest, tile, elements);
  }
}

// vLLM sparse_nccl, verl: flat positions in 32 bits and new values, as they are.
Bytes coo(const Tile& tile) {
  std::vector<std::uint32_t> positions;
  std::vector<std::uint16_t> values;
  for (std::size_t i = 0; i < tile.base.size(); ++i) {
    if (tile.base[i] == tile.next[i]) continue;
    positions.push_back(static_cast<std::uint32_t>(i));
    values.push_back(tile.next[i]);
  }
  Bytes bytes;
  append(bytes, positions);
  append(bytes, values);
  return bytes;
}
void undo_coo(const Bytes& payload, const Tile& tile, std::span<std::byte> out) {
  std::memcpy(out.data(), tile.base.data(), out.size());
  const std::size_t count = payload.size() / 6;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t position;
    std::memcpy(&position, payload.data() + i * 4, 4);
    std::memcpy(out.data() + std::size_t{position} * 2, payload.data() + count * 4 + i * 2, 2);
  }
}

// zstd --patch-from: the base as a prefix that matches may lie in.
constexpr int kPatchWindowLog = 27;
Bytes patch_from(const Tile& tile) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 3);
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, kPatchWindowLog);
  ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
  const View base = tile.base_bytes(), next = tile.next_bytes();
  ZSTD_CCtx_refPrefix(context, base.data(), base.size());
  Bytes out(ZSTD_compressBound(next.size()));
  out.resize(ZSTD_compress2(context, out.data(), out.size(), next.data(), next.size()));
  ZSTD_freeCCtx(context);
  return out;
}
void undo_patch_from(const Bytes& payload, const Tile& tile, std::span<std::byte> out) {
  ZSTD_DCtx* const context = ZSTD_createDCtx();
  ZSTD_DCtx_setParameter(context, ZSTD_d_windowLogMax, kPatchWindowLog);
  ZSTD_DCtx_refPrefix(context, tile.base.data(), tile.base.size() * 2);
  const std::size_t size =
      ZSTD_decompressDCtx(context, out.data(), out.size(), payload.data(), payload.size());
  ZSTD_freeDCtx(context);
  if (size != out.size()) fail("zstd --patch-from");
}

struct Rival {
  const char* name;
  Encode encode;
  Decode decode;
  Figures figures;
};

std::vector<Rival> make_rivals() {
  return {{"xor_zstd1", xor_zstd(1), undo_xor_zstd, {}},
          {"xor_zstd3", xor_zstd(3), undo_xor_zstd, {}},
          {"nemo", nemo, undo_nemo, {}},
          {"coo_int32", coo, undo_coo, {}},
          {"zstd_patch_from", patch_from, undo_patch_from, {}}};
}

void run_rival(Rival& rival, const Tile& tile, std::span<std::byte> out) {
  std::ranges::fill(out, std::byte{0});
  double begin = now_s();
  const Bytes payload = rival.encode(tile);
  const double encode_s = now_s() - begin;
  begin = now_s();
  rival.decode(payload, tile, out);
  add_sample(rival.figures, tile, payload.size(), encode_s, now_s() - begin);
  expect_equal(out, tile.next_bytes(), rival.name);
}

struct Density {
  Ours ours;
  std::vector<Rival> rivals = make_rivals();
  double entropy = 0, share = 0;
  double vs_entropy() const { return ours.codec.bytes_per_changed() / entropy; }
};

Density measure(const Training& training, std::size_t tiles, std::size_t rival_tiles) {
  const Moves moves = simulate_moves(training);
  Density out;
  Entropy entropy;
  Tile tile;
  const Pages memory(kTileElements * 2);
  for (std::size_t t = 0; t < tiles; ++t) {
    make_tile(moves, t, kTileElements, tile.base.data(), tile.next.data());
    tile.changed = 0;
    for (std::size_t i = 0; i < kTileElements; ++i) tile.changed += tile.base[i] != tile.next[i];
    entropy.add(tile);
    run_ours(tile, memory.bytes(), out.ours);
    if (t >= rival_tiles) continue;
    for (Rival& rival : out.rivals) run_rival(rival, tile, memory.bytes());
  }
  out.entropy = entropy.bytes_per_changed();
  out.share = static_cast<double>(out.ours.codec.changed) /
              static_cast<double>(out.ours.codec.model_bytes / 2);
  return out;
}

void print(const Training& training, const Density& d) {
  fmt::print("lr {:g}, {} steps, drift {:g}: {:.3f} % changed, entropy {:.3f} bytes per changed\n",
             training.learning_rate, training.steps_per_publish, training.drift, 100 * d.share,
             d.entropy);
  const auto line = [](const char* name, const Figures& f) {
    fmt::print(
        "  {:16} {:6.3f} bytes per changed, {:7.4f} % of the model, encode {} GB/s, decode {} "
        "GB/s\n",
        name, f.bytes_per_changed(),
        100.0 * static_cast<double>(f.wire_bytes) / static_cast<double>(f.model_bytes),
        spread(f.encode_gb_s), spread(f.decode_gb_s));
  };
  line("weft", d.ours.codec);
  fmt::print(
      "    {:.3f} of the entropy; with digests: decode {}, publish {} GB/s; in place {} ns per "
      "changed; memcpy {} GB/s\n",
      d.vs_entropy(), spread(d.ours.verify_gb_s), spread(d.ours.publish_gb_s),
      spread(d.ours.scatter_ns), spread(d.ours.memcpy_gb_s));
  for (const Rival& rival : d.rivals) {
    if (rival.figures.changed > 0) line(rival.name, rival.figures);
  }
  std::fflush(stdout);
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

void report(const Density& b, double worst, double worst_share) {
  const Rival &xor1 = b.rivals[0], &nemo_rl = b.rivals[2];
  const Figures& ours = b.ours.codec;
  const double encode = median(ours.encode_gb_s), decode = median(ours.decode_gb_s);
  const double copy = median(b.ours.memcpy_gb_s);
  fmt::print(
      "BENCH {{\"bench\": \"delta\", \"changed_percent\": {:.3f}, \"bytes_per_changed\": {:.4f}, "
      "\"entropy_bytes_per_changed\": {:.4f}, \"worst_vs_entropy\": {:.4f}, "
      "\"worst_at_percent\": {:.3f}, \"encode_gb_s\": {:.2f}, \"decode_apply_gb_s\": {:.2f}, "
      "\"decode_apply_verify_gb_s\": {:.2f}, \"publish_gb_s\": {:.2f}, \"memcpy_gb_s\": {:.2f}, "
      "\"encode_vs_memcpy\": {:.3f}, \"decode_vs_memcpy\": {:.3f}, "
      "\"scatter_ns_per_changed\": {:.2f}, \"vs_xor_zstd_bytes\": {:.2f}, "
      "\"vs_xor_zstd_encode\": {:.2f}, \"vs_nemo_bytes\": {:.2f}}}\n",
      100 * b.share, ours.bytes_per_changed(), b.entropy, worst, 100 * worst_share, encode, decode,
      median(b.ours.verify_gb_s), median(b.ours.publish_gb_s), copy, encode / copy, decode / copy,
      median(b.ours.scatter_ns), xor1.figures.bytes_per_changed() / ours.bytes_per_changed(),
      encode / median(xor1.figures.encode_gb_s),
      nemo_rl.figures.bytes_per_changed() / ours.bytes_per_changed());
}

std::size_t tiles_of(std::size_t megabytes) {
  return std::max<std::size_t>(1, megabytes * 1'000'000 / (kTileElements * 2));
}

int run(std::size_t megabytes, std::size_t dense_megabytes, std::size_t rival_tiles) {
  const Density b = measure(kTierB, tiles_of(megabytes), std::max<std::size_t>(rival_tiles, 1));
  print(kTierB, b);
  double worst = b.vs_entropy(), worst_share = b.share;
  if (dense_megabytes > 0) {
    for (const Training& training : kOthers) {
      const Density d =
          measure(training, tiles_of(dense_megabytes), std::min<std::size_t>(rival_tiles, 1));
      print(training, d);
      if (d.vs_entropy() > worst) worst = d.vs_entropy(), worst_share = d.share;
    }
  }
  report(b, worst, worst_share);
  return 0;
}

}  // namespace
}  // namespace weft::bench

int main(int count, char** arguments) {
  std::map<std::string, std::size_t> flags = {
      {"--mb", 1000}, {"--dense-mb", 256}, {"--rival-tiles", 3}};
  for (int i = 1; i < count; ++i) {
    const std::string flag = arguments[i];
    if (!flags.contains(flag) || i + 1 == count) {
      std::fprintf(stderr, "usage: delta_bench [--mb N] [--dense-mb N] [--rival-tiles N]\n");
      return 2;
    }
    flags[flag] = std::strtoul(arguments[++i], nullptr, 10);
  }
  return weft::bench::run(flags["--mb"], flags["--dense-mb"], flags["--rival-tiles"]);
}
