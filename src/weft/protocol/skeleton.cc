#include "weft/protocol/skeleton.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "weft/base/wording.h"

namespace weft {
namespace {

constexpr std::string_view kLeadingWrapper = "module.";
constexpr std::array<std::string_view, 3> kInnerWrappers = {"_orig_mod.", "_fsdp_wrapped_module.",
                                                            "_checkpoint_wrapped_module."};
constexpr std::size_t kNamesInMessage = 10;

// One kind of fault, for all tensors that have it.
class Faults {
 public:
  explicit Faults(std::string_view what) : what_(what) {}

  void add(std::string fault) {
    if (++count_ <= kNamesInMessage) faults_.push_back(std::move(fault));
  }
  void print(std::string& message) const {
    if (count_ == 0) return;
    if (!message.empty()) message += "; ";
    message += fmt::format("{}: {}", what_, fmt::join(faults_, ", "));
    if (count_ > faults_.size()) message += fmt::format(" and {} more", count_ - faults_.size());
  }

 private:
  std::string_view what_;
  std::vector<std::string> faults_;
  std::size_t count_ = 0;
};

// Why `offered` cannot be `expected`; "" if it can.
std::string mismatch(const TensorSpec& offered, const TensorSpec& expected) {
  if (offered.shape != expected.shape) {
    return fmt::format("{} is {}, expected {}", offered.name, shape_text(offered.shape),
                       shape_text(expected.shape));
  }
  const bool converts = is_float(offered.dtype) && is_float(expected.dtype);
  if (offered.dtype != expected.dtype && !converts) {
    return fmt::format("{} is {}, expected {}{}", offered.name, dtype_name(offered.dtype),
                       dtype_name(expected.dtype),
                       is_float(expected.dtype) ? " or another float" : "");
  }
  return "";
}

// A tied head is compared with the embedding by digest, so it must be sent in the same form.
std::string head_mismatch(const UploadPlan& plan) {
  const auto named = [&](std::string_view name) {
    return std::ranges::find(plan.tensors, name,
                             [](const auto& t) { return std::string_view(t.spec.name); });
  };
  const auto head = named(kHeadName);
  const auto embedding = named(kEmbeddingName);
  if (head == plan.tensors.end() || head->target || embedding == plan.tensors.end()) return "";
  if (head->spec.dtype == embedding->spec.dtype && head->spec.shape == embedding->spec.shape)
    return "";
  return fmt::format("{} is {} {}, expected the same as {}: {} {}", kHeadName,
                     dtype_name(head->spec.dtype), shape_text(head->spec.shape), kEmbeddingName,
                     dtype_name(embedding->spec.dtype), shape_text(embedding->spec.shape));
}

}  // namespace

std::string canonical_name(std::string_view name) {
  while (name.starts_with(kLeadingWrapper)) name.remove_prefix(kLeadingWrapper.size());
  std::string result(name);
  for (const std::string_view wrapper : kInnerWrappers) {
    for (std::size_t at = result.find(wrapper); at != std::string::npos;
         at = result.find(wrapper)) {
      result.erase(at, wrapper.size());
    }
  }
  return result == name ? result : canonical_name(result);
}

bool is_plain_file_name(std::string_view name) {
  constexpr std::size_t kMaxNameBytes = 255;  // Source: NAME_MAX of Linux
  const bool has_bad_char = std::ranges::any_of(
      name, [](char c) { return c == '/' || c == '\\' || (c >= 0 && c < ' ') || c == 0x7f; });
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' && !has_bad_char;
}

std::optional<std::size_t> UploadPlan::try_file(std::uint64_t entry) const {
  if (entry < tensors.size() || entry >= offered()) return std::nullopt;
  return static_cast<std::size_t>(entry) - tensors.size();
}

std::optional<std::size_t> UploadPlan::try_target(std::uint64_t entry) const {
  if (entry < tensors.size()) return tensors[entry].target;
  if (entry < offered()) return std::nullopt;
  return kept.at(entry - offered());
}

const std::string& UploadPlan::name(std::uint64_t entry, const WeightLayout& layout) const {
  if (entry < tensors.size()) return tensors[entry].spec.name;
  if (entry < offered()) return files[entry - tensors.size()].name;
  return layout.tensors()[kept.at(entry - offered())].name;
}

namespace {

// Tensors alone; those that are missing are kept.
Result<UploadPlan> plan_tensors(const WeightLayout& layout, std::span<const TensorSpec> offered,
                                bool tied, bool partial) {
  UploadPlan plan;
  Faults twice("sent twice"), unknown("not in the model"), wrong("mismatch"), missing("missing");
  std::vector<bool> seen(layout.tensors().size(), false);
  bool seen_head = false;
  for (const TensorSpec& spec : offered) {
    PlannedTensor planned{spec, std::nullopt, false};
    planned.spec.name = canonical_name(spec.name);
    planned.target = layout.try_find(planned.spec.name);
    const bool is_tied_head = tied && !planned.target && planned.spec.name == kHeadName;
    if (!planned.target && !is_tied_head) {
      unknown.add(spec.name);
      continue;
    }
    if (is_tied_head ? seen_head : seen[*planned.target]) twice.add(spec.name);
    if (is_tied_head) {
      seen_head = true;
    } else {
      const TensorSpec& expected = layout.tensors()[*planned.target];
      seen[*planned.target] = true;
      if (auto fault = mismatch(planned.spec, expected); !fault.empty())
        wrong.add(std::move(fault));
      planned.convert = planned.spec.dtype != expected.dtype;
      plan.converted |= planned.convert;
    }
    plan.tensors.push_back(std::move(planned));
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i]) continue;
    const TensorSpec& expected = layout.tensors()[i];
    plan.kept.push_back(i);
    if (!partial) missing.add(fmt::format("{} {}", expected.name, shape_text(expected.shape)));
  }
  if (auto fault = head_mismatch(plan); !fault.empty()) wrong.add(std::move(fault));
  std::string message;
  for (const Faults* faults : {&unknown, &missing, &wrong, &twice}) faults->print(message);
  if (!message.empty()) return Error(ErrorCode::kInvalidArgument, "tensors " + message);
  return plan;
}

Result<void> check_files(std::span<const OfferedFile> files) {
  std::uint64_t total_bytes = 0;
  std::set<std::string_view> names;
  for (const OfferedFile& file : files) {
    if (!is_plain_file_name(file.name)) {
      return Error(ErrorCode::kInvalidArgument,
                   fmt::format("`{}` is no plain file name", file.name));
    }
    if (!names.insert(file.name).second) {
      return Error(ErrorCode::kInvalidArgument, fmt::format("file {} comes twice", file.name));
    }
    if (file.size_bytes > kMaxFilesBytes - total_bytes) {
      return Error(ErrorCode::kTooLarge,
                   fmt::format("files have more than {} bytes together", kMaxFilesBytes));
    }
    total_bytes += file.size_bytes;
  }
  return {};
}

Result<void> add_sizes(UploadPlan& plan, const WeightLayout& layout) {
  for (const PlannedTensor& tensor : plan.tensors) {
    WEFT_TRY(const std::uint64_t size_bytes, tensor_size_bytes(tensor.spec));
    plan.sizes_bytes.push_back(size_bytes);
  }
  for (const OfferedFile& file : plan.files) plan.sizes_bytes.push_back(file.size_bytes);
  for (const std::size_t tensor : plan.kept)
    plan.sizes_bytes.push_back(layout.tensor_bytes(tensor));
  return {};
}

}  // namespace

Result<UploadPlan> plan_upload(const WeightLayout& layout, std::span<const TensorSpec> offered,
                               bool tied) {
  WEFT_TRY(UploadPlan plan, plan_tensors(layout, offered, tied, false));
  WEFT_TRY_VOID(add_sizes(plan, layout));
  return plan;
}

Result<UploadPlan> plan_offer(const WeightLayout& layout, const UploadOffer& offer, bool tied) {
  WEFT_TRY(UploadPlan plan, plan_tensors(layout, offer.tensors, tied, offer.partial));
  WEFT_TRY_VOID(check_files(offer.files));
  plan.files = offer.files;
  WEFT_TRY_VOID(add_sizes(plan, layout));
  for (std::size_t i = 0; i < std::min(offer.blocks.size(), plan.offered()); ++i) {
    const std::size_t digests = offer.blocks[i].size();
    const std::uint64_t blocks = block_count(plan.sizes_bytes[i]);
    if (digests == 0 || digests == blocks) continue;
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: {}, expected {} ({} bytes in blocks of {})", plan.name(i, layout),
                    counted(digests, "block digest"), blocks, plan.sizes_bytes[i], kBlockBytes));
  }
  return plan;
}

}  // namespace weft
