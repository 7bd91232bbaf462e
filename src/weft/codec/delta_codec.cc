#include "weft/codec/delta_codec.h"

#include <algorithm>

#include <fmt/core.h>
#include <zstd.h>

#include "weft/base/check.h"
#include "weft/codec/internal/changes.h"
#include "weft/codec/internal/elements.h"
#include "weft/codec/internal/load_store.h"
#include "weft/codec/internal/plain_form.h"
#include "weft/codec/internal/sparse_form.h"
#include "weft/codec/internal/sparse_walk.h"
#include "weft/digest/digest.h"

namespace weft {
namespace {

using internal::Changes;
using internal::ClassPlan;
using Bytes = std::vector<std::byte>;
using View = std::span<const std::byte>;

constexpr std::uint8_t kVersion = 1;
constexpr unsigned kForms = 5;
// Offsets in the header, docs/formats/delta.md.
constexpr std::size_t kFormAt = 1, kKindAt = 2, kZeroAt = 3, kElementsAt = 4, kChangedAt = 8,
                      kOldDigestAt = 12;
static_assert(kOldDigestAt + kDeltaDigestBytes == kDeltaHeaderBytes);

Error corrupt(std::string message) {
  return Error(ErrorCode::kCorrupt, "delta: " + std::move(message));
}
Error other_base() {
  return Error(ErrorCode::kConflict, "delta: the base is not what it was made against");
}

template <typename T>
View bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

Bytes compress(View bytes) {
  return encode_zstd(bytes);
}

// base XOR next: byte 0 of all elements, then byte 1, ...
Bytes xor_planes(View base, View next, std::size_t elem_bytes) {
  const std::size_t elements = base.size() / elem_bytes;
  Bytes planes(base.size());
  for (std::size_t plane = 0; plane < elem_bytes; ++plane) {
    std::byte* const out = planes.data() + plane * elements;
    for (std::size_t i = 0; i < elements; ++i) {
      out[i] = base[i * elem_bytes + plane] ^ next[i * elem_bytes + plane];
    }
  }
  return planes;
}

void undo_xor_planes(View planes, View base, std::size_t elem_bytes, std::span<std::byte> block) {
  const std::size_t elements = base.size() / elem_bytes;
  for (std::size_t plane = 0; plane < elem_bytes; ++plane) {
    const std::byte* const in = planes.data() + plane * elements;
    for (std::size_t i = 0; i < elements; ++i) {
      block[i * elem_bytes + plane] = base[i * elem_bytes + plane] ^ in[i];
    }
  }
}

// What zstd makes of a whole is told by a few pieces of it.
constexpr std::size_t kSamples = 4;
constexpr std::size_t kSampleBytes = 16 << 10;

template <typename Compressed>
std::size_t estimate_zstd(std::size_t size_bytes, Compressed compressed_bytes) {
  if (size_bytes <= kSamples * kSampleBytes) return compressed_bytes(0, size_bytes);
  std::size_t sum = 0;
  for (std::size_t i = 0; i < kSamples; ++i) {
    const std::size_t begin = (size_bytes - kSampleBytes) / (kSamples - 1) * i;
    sum += compressed_bytes(begin / 8 * 8, kSampleBytes);
  }
  return sum * (size_bytes / 1024) / (kSamples * kSampleBytes / 1024);
}

// The sparse form is taken without a look at the others where it makes of the block an eighth at
// most: they are slower on both sides, and rarely better there.
constexpr std::size_t kSparseIsGoodEnough = 8;

DeltaForm choose_form(View base, View next, std::size_t elem_bytes, std::size_t sparse_bytes) {
  if (sparse_bytes * kSparseIsGoodEnough <= next.size()) return DeltaForm::kSparse;
  const std::size_t zstd_bytes = estimate_zstd(next.size(), [&](std::size_t at, std::size_t size) {
    return compress(next.subspan(at, size)).size();
  });
  const std::size_t dense_bytes = estimate_zstd(next.size(), [&](std::size_t at, std::size_t size) {
    return compress(xor_planes(base.subspan(at, size), next.subspan(at, size), elem_bytes)).size();
  });
  // Ties go to what decodes fastest.
  const std::size_t least = std::min({sparse_bytes, zstd_bytes, dense_bytes, next.size()});
  if (least == next.size()) return DeltaForm::kIdentity;
  if (least == sparse_bytes) return DeltaForm::kSparse;
  return least == zstd_bytes ? DeltaForm::kZstd : DeltaForm::kDense;
}

Bytes with_frame(DeltaForm form, ElemKind kind, std::size_t elements, std::size_t changed,
                 const Digest& old_digest, View body) {
  const bool needs_base = form != DeltaForm::kIdentity && form != DeltaForm::kZstd;
  Bytes payload(kDeltaFrameBytes + body.size());
  payload[0] = std::byte{kVersion};
  payload[kFormAt] = static_cast<std::byte>(form);
  payload[kKindAt] = static_cast<std::byte>(kind);
  internal::store(payload.data() + kElementsAt, static_cast<std::uint32_t>(elements));
  if (needs_base) {
    internal::store(payload.data() + kChangedAt, static_cast<std::uint32_t>(changed));
    std::copy_n(old_digest.bytes.begin(), kDeltaDigestBytes, payload.begin() + kOldDigestAt);
  }
  std::ranges::copy(body, payload.begin() + kDeltaHeaderBytes);
  const auto covered = std::span(payload).first(payload.size() - kDeltaDigestBytes);
  std::copy_n(digest_of(covered).bytes.begin(), kDeltaDigestBytes, payload.data() + covered.size());
  return payload;
}

// Where the plain form makes of the block a quarter at most, the bytes that coding would save take
// less time to send than coding takes.
constexpr std::size_t kPlainIsGoodEnough = 4;

template <typename T>
Bytes encode(View base, View next, ElemKind kind, DeltaGoal goal) {
  const std::size_t elements = next.size() / sizeof(T);
  const Changes<T> changes = internal::find_changes<T>(base, next);
  const std::size_t changed = changes.positions.size();
  const Digest old_digest = digest_of(bytes_of(changes.old));
  if (changed == 0) return with_frame(DeltaForm::kSparse, kind, elements, 0, old_digest, {});
  if (goal == DeltaGoal::kFast && changed * (1 + sizeof(T)) * kPlainIsGoodEnough <= next.size()) {
    const Bytes body = internal::write_plain(changes.positions, bytes_of(changes.next));
    return with_frame(DeltaForm::kPlain, kind, elements, changed, old_digest, body);
  }

  const ClassPlan plan = internal::plan_sparse(changes, base, kind);
  DeltaForm form = choose_form(base, next, sizeof(T), plan.body_bytes);
  Bytes body;
  if (form == DeltaForm::kSparse) {
    body = internal::write_sparse(changes, base, kind, plan.classes);
  } else if (form == DeltaForm::kZstd) {
    body = compress(next);
  } else if (form == DeltaForm::kDense) {
    body = compress(xor_planes(base, next, sizeof(T)));
  }
  if (form == DeltaForm::kIdentity || body.size() >= next.size()) {
    return with_frame(DeltaForm::kIdentity, kind, elements, 0, {}, next);
  }
  return with_frame(form, kind, elements, changed, old_digest, body);
}

bool begins_with(const Digest& digest, View first_bytes) {
  return std::equal(first_bytes.begin(), first_bytes.end(), digest.bytes.begin());
}

// A payload whose frame is right.
struct Framed {
  DeltaHeader header;
  View old_digest, body;
};

Result<Framed> read_frame(View payload, std::uint64_t block_bytes, ElemKind kind) {
  WEFT_CHECK(block_bytes <= kMaxDeltaBlockBytes);
  if (payload.size() < kDeltaFrameBytes) {
    return corrupt(fmt::format("{} bytes, expected at least {}", payload.size(), kDeltaFrameBytes));
  }
  if (payload.size() > kDeltaFrameBytes + block_bytes) {
    return corrupt(fmt::format("{} bytes for a block of {}", payload.size(), block_bytes));
  }
  if (payload[0] != std::byte{kVersion}) {
    return Error(ErrorCode::kUnsupported, fmt::format("delta: format version {}, expected {}",
                                                      std::to_integer<int>(payload[0]), kVersion));
  }
  const View covered = payload.first(payload.size() - kDeltaDigestBytes);
  if (!begins_with(digest_of(covered), payload.last(kDeltaDigestBytes))) {
    return corrupt("the payload does not have the digest at its end");
  }
  const auto form = std::to_integer<unsigned>(payload[kFormAt]);
  if (form >= kForms) return corrupt(fmt::format("form {}", form));
  if (payload[kZeroAt] != std::byte{0}) return corrupt("the fourth byte is not zero");
  if (payload[kKindAt] != static_cast<std::byte>(kind)) {
    return corrupt(fmt::format("elements of kind {}, the tensor's are {}",
                               std::to_integer<int>(payload[kKindAt]), static_cast<int>(kind)));
  }
  const std::uint64_t elements = block_bytes / elem_size_bytes(kind);
  const auto stated = internal::load<std::uint32_t>(payload.data() + kElementsAt);
  if (stated != elements) {
    return corrupt(fmt::format("of {} elements, the block has {}", stated, elements));
  }
  Framed framed;
  framed.header.form = static_cast<DeltaForm>(form);
  framed.header.changed = internal::load<std::uint32_t>(payload.data() + kChangedAt);
  framed.old_digest = payload.subspan(kOldDigestAt, kDeltaDigestBytes);
  framed.body = covered.subspan(kDeltaHeaderBytes);
  if (framed.header.changed > elements) {
    return corrupt(
        fmt::format("{} changes in a block of {} elements", framed.header.changed, elements));
  }
  return framed;
}

// The forms that do not say anything of a base.
Result<void> decode_whole(const Framed& framed, std::span<std::byte> block) {
  const bool is_blank =
      framed.header.changed == 0 &&
      std::ranges::all_of(framed.old_digest, [](std::byte b) { return b == std::byte{0}; });
  if (!is_blank) return corrupt("a whole block that replaces values");
  if (framed.header.form == DeltaForm::kZstd) return decode_zstd(framed.body, block);
  if (framed.body.size() != block.size()) {
    return corrupt(
        fmt::format("a block of {} bytes, expected {}", framed.body.size(), block.size()));
  }
  std::ranges::copy(framed.body, block.begin());
  return {};
}

template <typename T>
Result<void> decode_dense(const Framed& framed, View base, std::span<std::byte> block) {
  Bytes planes(block.size());
  if (auto done = decode_zstd(framed.body, planes); !done) return done;
  undo_xor_planes(planes, base, sizeof(T), block);
  planes = {};
  const Changes<T> changes = internal::find_changes<T>(base, block);
  if (changes.positions.size() != framed.header.changed) {
    return corrupt(fmt::format("{} elements change, the header says {}", changes.positions.size(),
                               framed.header.changed));
  }
  if (!begins_with(digest_of(bytes_of(changes.old)), framed.old_digest)) return other_base();
  return {};
}

// Where the changes of a sparse or plain delta are in `base`, as walk_changes() tells them. False:
// they are not its.
template <typename T, typename OnStretch, typename OnChange>
Result<bool> walk(const Framed& framed, View base, ElemKind kind, OnStretch on_stretch,
                  OnChange on_change) {
  const std::size_t elements = base.size() / sizeof(T);
  if (framed.header.form == DeltaForm::kSparse) {
    const auto streams = internal::read_sparse<T>(framed.body, elements, framed.header.changed);
    if (!streams) return streams.error();
    return internal::walk_changes(*streams, base, kind, on_stretch, on_change);
  }
  const auto streams =
      internal::read_plain(framed.body, sizeof(T), elements, framed.header.changed);
  if (!streams) return streams.error();
  bool all_change = true;
  const auto change = [&](std::size_t i, std::size_t position, T old) {
    const T next = internal::load<T>(streams->values.data() + i * sizeof(T));
    all_change &= next != old;
    on_change(position, old, next);
  };
  return internal::walk_gaps<T>(streams->gaps, base, on_stretch, change) && all_change;
}

template <typename T>
Result<void> decode_changes(const Framed& framed, View base, ElemKind kind,
                            std::span<std::byte> block) {
  std::vector<T> old;
  old.reserve(framed.header.changed);
  const auto copy = [&](std::size_t begin, std::size_t count) {
    std::memcpy(block.data() + begin * sizeof(T), base.data() + begin * sizeof(T),
                count * sizeof(T));
    internal::prefetch_ahead<1>(block.data() + begin * sizeof(T), count * sizeof(T));
  };
  const auto change = [&](std::size_t position, T was, T is) {
    internal::store(block.data() + position * sizeof(T), is);
    old.push_back(was);
  };
  const auto fits = walk<T>(framed, base, kind, copy, change);
  if (!fits) return fits.error();
  if (!*fits || !begins_with(digest_of(bytes_of(old)), framed.old_digest)) return other_base();
  return {};
}

template <typename T>
Result<void> decode(const Framed& framed, View base, ElemKind kind, std::span<std::byte> block) {
  switch (framed.header.form) {
    case DeltaForm::kIdentity:
    case DeltaForm::kZstd:
      return decode_whole(framed, block);
    case DeltaForm::kDense:
      return decode_dense<T>(framed, base, block);
    case DeltaForm::kSparse:
    case DeltaForm::kPlain:
      break;
  }
  return decode_changes<T>(framed, base, kind, block);
}

template <typename T>
DeltaPatch make_patch(std::vector<std::uint32_t> positions, const std::vector<T>& old,
                      const std::vector<T>& next) {
  const View values = bytes_of(next);
  return {std::move(positions), Bytes(values.begin(), values.end()), digest_of(bytes_of(old))};
}

template <typename T>
Result<DeltaPatch> resolve(const Framed& framed, View base, ElemKind kind) {
  if (framed.header.form != DeltaForm::kSparse && framed.header.form != DeltaForm::kPlain) {
    Bytes block(base.size());
    if (auto done = decode<T>(framed, base, kind, block); !done) return done.error();
    return find_patch(base, block, sizeof(T));
  }
  Changes<T> changes;
  changes.positions.resize(framed.header.changed);
  changes.old.resize(framed.header.changed);
  changes.next.resize(framed.header.changed);
  std::size_t found = 0;
  const auto change = [&](std::size_t position, T was, T is) {
    changes.positions[found] = static_cast<std::uint32_t>(position);
    changes.old[found] = was;
    changes.next[found++] = is;
  };
  const auto fits = walk<T>(
      framed, base, kind, [](std::size_t, std::size_t) {}, change);
  if (!fits) return fits.error();
  DeltaPatch patch = make_patch(std::move(changes.positions), changes.old, changes.next);
  if (!*fits || !begins_with(patch.old_values_digest, framed.old_digest)) return other_base();
  return patch;
}

}  // namespace

std::size_t elem_size_bytes(ElemKind kind) {
  return internal::traits_of(kind).elem_bytes;
}

std::vector<std::byte> encode_delta(std::span<const std::byte> base,
                                    std::span<const std::byte> next, ElemKind kind,
                                    DeltaGoal goal) {
  WEFT_CHECK(base.size() == next.size());
  WEFT_CHECK(base.size() <= kMaxDeltaBlockBytes);
  WEFT_CHECK(base.size() % elem_size_bytes(kind) == 0);
  return internal::with_element(elem_size_bytes(kind),
                                [&]<typename T>(T) { return encode<T>(base, next, kind, goal); });
}

Result<DeltaHeader> read_delta_header(std::span<const std::byte> payload, std::uint64_t block_bytes,
                                      ElemKind kind) {
  const auto framed = read_frame(payload, block_bytes, kind);
  if (!framed) return framed.error();
  return framed->header;
}

Result<void> decode_delta(std::span<const std::byte> payload, std::span<const std::byte> base,
                          ElemKind kind, std::span<std::byte> block) {
  WEFT_CHECK(base.size() == block.size());
  const auto framed = read_frame(payload, block.size(), kind);
  if (!framed) return framed.error();
  return internal::with_element(
      elem_size_bytes(kind), [&]<typename T>(T) { return decode<T>(*framed, base, kind, block); });
}

SparsePatch DeltaPatch::view(ElemKind kind) const {
  SparsePatch patch;
  patch.elem_bytes = elem_size_bytes(kind);
  patch.count = positions.size();
  patch.old_values_digest = old_values_digest.bytes;
  patch.positions = bytes_of(positions);
  patch.values = values;
  return patch;
}

Result<DeltaPatch> resolve_delta(std::span<const std::byte> payload,
                                 std::span<const std::byte> base, ElemKind kind) {
  const auto framed = read_frame(payload, base.size(), kind);
  if (!framed) return framed.error();
  return internal::with_element(elem_size_bytes(kind),
                                [&]<typename T>(T) { return resolve<T>(*framed, base, kind); });
}

DeltaPatch find_patch(std::span<const std::byte> base, std::span<const std::byte> next,
                      std::size_t elem_bytes) {
  WEFT_CHECK(base.size() == next.size());
  return internal::with_element(elem_bytes, [&]<typename T>(T) {
    Changes<T> changes = internal::find_changes<T>(base, next);
    return make_patch(std::move(changes.positions), changes.old, changes.next);
  });
}

}  // namespace weft
