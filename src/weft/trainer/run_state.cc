#include "weft/trainer/run_state.h"

#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "weft/base/file.h"
#include "weft/format/safetensors.h"

namespace weft {
namespace {

template <typename T>
Result<T> parse_number(const std::string& name, const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Error(ErrorCode::kCorrupt, fmt::format("the saved state's {} is no number", name));
  }
  return value;
}

}  // namespace

void RunState::put(const std::string& prefix, std::vector<StateTensor> some) {
  for (StateTensor& tensor : some) {
    tensor.spec.name.insert(0, prefix);
    const std::string name = tensor.spec.name;
    tensors.insert_or_assign(name, std::move(tensor));
  }
}

std::vector<StateTensor> RunState::tensors_of(const std::string& prefix) const {
  std::vector<StateTensor> found;
  for (auto at = tensors.lower_bound(prefix); at != tensors.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    found.push_back(at->second);
    found.back().spec.name.erase(0, prefix.size());
  }
  return found;
}

void RunState::put(const std::string& name, double value) {
  values[name] = fmt::format("{}", value);  // the shortest text that reads as the same
}

void RunState::put(const std::string& name, std::uint64_t value) {
  values[name] = fmt::format("{}", value);
}

Result<std::string> RunState::text(const std::string& name) const {
  const auto found = values.find(name);
  if (found == values.end()) {
    return Error(ErrorCode::kCorrupt, fmt::format("the saved state has no {}", name));
  }
  return found->second;
}

Result<double> RunState::number(const std::string& name) const {
  WEFT_TRY(const std::string value, text(name));
  return parse_number<double>(name, value);
}

Result<std::uint64_t> RunState::integer(const std::string& name) const {
  WEFT_TRY(const std::string value, text(name));
  return parse_number<std::uint64_t>(name, value);
}

Result<void> blocking_save_state(const std::filesystem::path& path, const RunState& state) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : state.tensors) specs.push_back(tensor.spec);
  WEFT_TRY(const std::string header, make_safetensors_header(specs, state.values));
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(header))};
  for (const auto& [name, tensor] : state.tensors) parts.emplace_back(tensor.bytes);
  WEFT_TRY_VOID(blocking_write_file(path, parts));
  return blocking_sync_folder(path.parent_path());
}

Result<RunState> blocking_load_state(const std::filesystem::path& path) {
  WEFT_TRY(const File file, File::open(path));
  const auto in_file = [&](Error error) { return std::move(error).with_context(path.string()); };
  std::array<std::byte, kSafetensorsPrefixBytes> prefix{};
  WEFT_TRY_VOID(file.blocking_read_at(0, prefix));
  const auto length = parse_safetensors_prefix(prefix);
  if (!length) return in_file(length.error());
  std::string json(*length, '\0');
  WEFT_TRY_VOID(file.blocking_read_at(prefix.size(), std::as_writable_bytes(std::span(json))));
  auto header = parse_safetensors_header(json);
  if (!header) return in_file(header.error());
  const std::uint64_t begin = prefix.size() + *length;
  if (file.size_bytes() != begin + header->data_bytes) {
    return in_file(Error(ErrorCode::kCorrupt, "its size is not what its header says"));
  }
  RunState state;
  for (SafetensorsEntry& entry : header->tensors) {
    StateTensor tensor{entry.spec, {}};
    tensor.bytes.resize(entry.end_bytes - entry.begin_bytes);
    WEFT_TRY_VOID(file.blocking_read_at(begin + entry.begin_bytes, tensor.bytes));
    state.tensors.emplace(entry.spec.name, std::move(tensor));
  }
  state.values = std::move(header->metadata);
  return state;
}

}  // namespace weft
