#include "weft/protocol/catalog.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/core.h>

#include "weft/base/check.h"
#include "weft/protocol/label.h"

namespace weft {
namespace {

constexpr std::size_t kMaxHeadNameBytes = 128;

Error no_version(std::string_view id) {
  return {ErrorCode::kNotFound, fmt::format("no version `{}` here", id)};
}

}  // namespace

bool is_head_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxHeadNameBytes && std::ranges::all_of(name, is_allowed);
}

Result<void> Catalog::commit(Commit commit) {
  if (commit.label) WEFT_TRY_VOID(check_label(*commit.label));
  if (commit.head) WEFT_TRY_VOID(check_head(*commit.head, commit.if_match));
  if (commit.if_match && !commit.head) {
    return Error(ErrorCode::kInvalidArgument, "if_match: expected a head beside it", "if_match");
  }
  CatalogVersion& version = commit.version;
  const std::string id = version.id;
  if (const CatalogVersion* const known = try_find(id)) {
    version.pinned = known->pinned;
    if (version.parent.empty()) version.parent = known->parent;
    if (version.origin.empty()) version.origin = known->origin;
  }
  version.sequence = ++last_sequence_;
  versions_.insert_or_assign(id, std::move(version));
  if (commit.label) labels_.insert_or_assign(*commit.label, id);
  if (commit.head) heads_.insert_or_assign(*commit.head, id);
  return {};
}

Result<void> Catalog::move_head(const std::string& name, const std::string& id,
                                const std::optional<std::string>& expected) {
  WEFT_TRY_VOID(find(id));
  WEFT_TRY_VOID(check_head(name, expected));
  heads_.insert_or_assign(name, id);
  return {};
}

Result<void> Catalog::check_head(const std::string& name,
                                 const std::optional<std::string>& expected) const {
  if (!is_head_name(name)) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("`{}` is no name of a head: expected 1 to {} letters, digits, `.`, "
                             "`_` or `-`",
                             name.substr(0, kMaxHeadNameBytes), kMaxHeadNameBytes),
                 "head");
  }
  if (!expected) return {};
  const auto found = heads_.find(name);
  const std::string current = found == heads_.end() ? "" : found->second;
  if (current == *expected) return {};
  return Error(ErrorCode::kPreconditionFailed,
               current.empty() ? fmt::format("there is no head `{}`", name)
                               : fmt::format("the head `{}` is {}", name, current));
}

Result<void> Catalog::delete_head(const std::string& name) {
  if (heads_.erase(name) > 0) return {};
  return Error(ErrorCode::kNotFound, fmt::format("no head `{}` here", name));
}

Result<void> Catalog::set_label(const std::string& label, const std::string& id) {
  WEFT_TRY_VOID(check_label(label));
  WEFT_TRY_VOID(find(id));
  labels_.insert_or_assign(label, id);
  return {};
}

Result<void> Catalog::set_pin(const std::string& id, bool pinned) {
  WEFT_TRY(CatalogVersion * version, find(id));
  version->pinned = pinned;
  return {};
}

Result<void> Catalog::remove(const std::string& id) {
  WEFT_TRY(const CatalogVersion* version, find(id));
  if (version->pinned) {
    return Error(ErrorCode::kConflict, fmt::format("{} is pinned: unpin it first", id));
  }
  for (const auto& [name, head] : heads_) {
    if (head != id) continue;
    return Error(ErrorCode::kConflict,
                 fmt::format("{} is the head `{}`: move or delete that first", id, name));
  }
  drop(id);
  return {};
}

void Catalog::drop(const std::string& id) {
  std::erase_if(labels_, [&](const auto& label) { return label.second == id; });
  std::erase_if(heads_, [&](const auto& head) { return head.second == id; });
  versions_.erase(id);
}

void Catalog::restore(CatalogVersion version) {
  last_sequence_ = std::max(last_sequence_, version.sequence);
  const std::string id = version.id;
  versions_.insert_or_assign(id, std::move(version));
}

std::vector<std::string> Catalog::expendable(
    const Retention& retention, std::int64_t now_ms,
    const std::function<bool(const std::string&)>& held) const {
  std::vector<std::string> ids;
  if (!retention.keep_last && !retention.keep_younger) return ids;
  // The newest stays whatever the rules and the clock say.
  const std::uint64_t keep_last = std::max<std::uint64_t>(retention.keep_last.value_or(1), 1);
  std::uint64_t rank = 0;
  for (const CatalogVersion* const version : newest_first()) {
    const bool is_young =
        retention.keep_younger && now_ms - version->created_ms < retention.keep_younger->count();
    const bool is_head =
        std::ranges::any_of(heads_, [&](const auto& head) { return head.second == version->id; });
    if (rank++ < keep_last || is_young || is_head || version->pinned || held(version->id)) continue;
    ids.push_back(version->id);
  }
  std::ranges::reverse(ids);
  return ids;
}

const CatalogVersion* Catalog::try_find(const std::string& id) const {
  const auto found = versions_.find(id);
  return found == versions_.end() ? nullptr : &found->second;
}

Result<CatalogVersion*> Catalog::find(const std::string& id) {
  const auto found = versions_.find(id);
  if (found == versions_.end()) return no_version(id);
  return &found->second;
}

std::vector<const CatalogVersion*> Catalog::newest_first() const {
  std::vector<const CatalogVersion*> sorted;
  for (const auto& [id, version] : versions_) sorted.push_back(&version);
  std::ranges::sort(sorted, std::greater<>(), &CatalogVersion::sequence);
  return sorted;
}

std::vector<std::string> Catalog::labels_of(const std::string& id) const {
  std::vector<std::string> labels;
  for (const auto& [label, target] : labels_) {
    if (target == id) labels.push_back(label);
  }
  return labels;
}

std::size_t ObjectLedger::ByFirstBytes::operator()(const Digest& digest) const {
  std::size_t hash;
  std::memcpy(&hash, digest.bytes.data(), sizeof(hash));
  return hash;
}

void ObjectLedger::add(const Digest& digest) {
  Object& object = objects_[digest];
  if (!object.on_disk) ++on_disk_;
  object.on_disk = true;
}

void ObjectLedger::lose(const Digest& digest) {
  const auto found = objects_.find(digest);
  if (found == objects_.end() || !found->second.on_disk) return;
  found->second.on_disk = false;
  --on_disk_;
  forget_if_unused(digest);
}

bool ObjectLedger::has(const Digest& digest) const {
  const auto found = objects_.find(digest);
  return found != objects_.end() && found->second.on_disk;
}

void ObjectLedger::reference(const Digest& digest) {
  ++objects_[digest].references;
}

void ObjectLedger::release(const Digest& digest) {
  Object& object = objects_.at(digest);
  WEFT_CHECK(object.references > 0);
  --object.references;
  forget_if_unused(digest);
}

void ObjectLedger::forget_if_unused(const Digest& digest) {
  const auto found = objects_.find(digest);
  if (!found->second.on_disk && found->second.references == 0) objects_.erase(found);
}

std::vector<Digest> ObjectLedger::take_garbage() {
  std::vector<Digest> garbage;
  std::erase_if(objects_, [&](const auto& object) {
    if (object.second.references > 0) return false;
    garbage.push_back(object.first);
    return true;
  });
  on_disk_ -= garbage.size();
  return garbage;
}

}  // namespace weft
