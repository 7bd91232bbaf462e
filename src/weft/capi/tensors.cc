// Tensors, files and sources as they come in; weights as they go out.

#include <optional>
#include <span>
#include <utility>

#include <fmt/core.h>

#include "weft/capi/internal/handles.h"

namespace weft::capi {
namespace {

constexpr int kLastDType = WEFT_U64;
static_assert(static_cast<int>(DType::kBool) == WEFT_BOOL);
static_assert(static_cast<int>(DType::kF16) == WEFT_F16);
static_assert(static_cast<int>(DType::kBF16) == WEFT_BF16);
static_assert(static_cast<int>(DType::kU64) == kLastDType);

std::optional<DType> try_dtype(weft_dtype dtype) {
  if (dtype < 0 || static_cast<int>(dtype) > kLastDType) return std::nullopt;
  return static_cast<DType>(dtype);
}

// Tensors whose bytes a callback reads.
class CallbackSource final : public TensorSource {
 public:
  CallbackSource(std::vector<TensorSpec> specs, Files files, const weft_source& source)
      : specs_(std::move(specs)), files_(std::move(files)), source_(source) {
    for (const auto& [name, text] : files_) {
      offered_.push_back({name, text.size()});
      texts_.push_back(std::as_bytes(std::span(text)));
    }
  }

  const std::vector<TensorSpec>& tensors() const override { return specs_; }
  const std::vector<OfferedFile>& files() const override { return offered_; }
  bool is_costly() const override { return source_.costly; }

  Result<std::span<const std::byte>> blocking_read(std::size_t entry, std::uint64_t offset_bytes,
                                                   std::span<std::byte> scratch) const override {
    if (entry >= specs_.size()) {
      return texts_.at(entry - specs_.size())
          .subspan(static_cast<std::size_t>(offset_bytes), scratch.size());
    }
    const void* view = scratch.data();
    clear_callback_message();
    const weft_code code =
        source_.read(source_.context, entry, offset_bytes, scratch.data(), scratch.size(), &view);
    if (code != WEFT_OK) return callback_error(code).with_context(specs_[entry].name);
    return std::span(static_cast<const std::byte*>(view), scratch.size());
  }

 private:
  const std::vector<TensorSpec> specs_;
  const Files files_;
  const weft_source source_;
  std::vector<OfferedFile> offered_;
  std::vector<std::span<const std::byte>> texts_;
};

}  // namespace

Result<TensorSpec> read_spec(const weft_tensor& tensor) {
  WEFT_TRY_VOID(check_given(tensor.name, "a tensor's name"));
  const auto dtype = try_dtype(tensor.dtype);
  if (!dtype) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: dtype {} is none of weft_dtype", tensor.name,
                             static_cast<int>(tensor.dtype)));
  }
  if (tensor.rank > 0 && tensor.shape == nullptr) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{}: rank {} without a shape", tensor.name, tensor.rank));
  }
  return TensorSpec{tensor.name, *dtype, Shape(tensor.shape, tensor.shape + tensor.rank)};
}

Result<std::vector<TensorSpec>> read_specs(const weft_tensor* tensors, std::size_t count) {
  std::vector<TensorSpec> specs;
  if (count > 0) WEFT_TRY_VOID(check_given(tensors, "tensors"));
  for (std::size_t i = 0; i < count; ++i) {
    WEFT_TRY(TensorSpec spec, read_spec(tensors[i]));
    specs.push_back(std::move(spec));
  }
  return specs;
}

Result<Files> read_files(const weft_file* files, std::size_t count) {
  Files read;
  if (count > 0) WEFT_TRY_VOID(check_given(files, "files"));
  for (std::size_t i = 0; i < count; ++i) {
    WEFT_TRY_VOID(check_given(files[i].name, "a file's name"));
    if (files[i].size_bytes > 0) WEFT_TRY_VOID(check_given(files[i].data, files[i].name));
    const bool is_new =
        read.emplace(files[i].name, std::string(static_cast<const char*>(files[i].data),
                                                static_cast<std::size_t>(files[i].size_bytes)))
            .second;
    if (!is_new) {
      return Error(ErrorCode::kInvalidArgument, fmt::format("{}: given twice", files[i].name));
    }
  }
  return read;
}

Result<std::unique_ptr<TensorSource>> blocking_open(const weft_source& source) {
  if (source.path != nullptr) return blocking_open_source(source.path);
  WEFT_TRY(std::vector<TensorSpec> specs, read_specs(source.tensors, source.tensor_count));
  WEFT_TRY(Files files, read_files(source.files, source.file_count));
  if (source.read != nullptr) {
    return std::unique_ptr<TensorSource>(
        std::make_unique<CallbackSource>(std::move(specs), std::move(files), source));
  }
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const weft_tensor& tensor = source.tensors[i];
    if (tensor.size_bytes > 0) WEFT_TRY_VOID(check_given(tensor.data, tensor.name));
    views.push_back({std::move(specs[i]), std::span(static_cast<const std::byte*>(tensor.data),
                                                    static_cast<std::size_t>(tensor.size_bytes))});
  }
  WEFT_TRY(MemorySource memory, MemorySource::create(views, std::move(files)));
  return std::unique_ptr<TensorSource>(std::make_unique<MemorySource>(std::move(memory)));
}

Result<std::unique_ptr<TensorSource>> blocking_open_base(const weft_source* base) {
  if (base == nullptr) return nullptr;
  WEFT_TRY(const weft_source source, read_struct(base, "options.base"));
  return blocking_open(source);
}

HeldVersion::HeldVersion(const weft_weights& weights)
    : set_(*weights.lease->set), content_(weights.content) {
  for (const auto& [name, text] : *weights.files) {
    files_.push_back({name, text.size()});
    texts_.push_back(std::as_bytes(std::span(text)));
  }
}

Result<std::unique_ptr<HeldVersion>> HeldVersion::blocking_make(const weft_weights& weights) {
  std::unique_ptr<HeldVersion> held(new HeldVersion(weights));
  if (held->content_) return held;
  WEFT_TRY(const SourceVersion hashed, SourceVersion::blocking_make(*held, kThreads));
  held->content_ = hashed.shared_content();
  return held;
}

Result<std::span<const std::byte>> HeldVersion::blocking_read(std::size_t entry,
                                                              std::uint64_t offset_bytes,
                                                              std::span<std::byte> scratch) const {
  const bool is_tensor = entry < tensors().size();
  const auto bytes = is_tensor ? set_.tensor(entry) : texts_.at(entry - tensors().size());
  return bytes.subspan(static_cast<std::size_t>(offset_bytes), scratch.size());
}

weft_tensor tensor_of(const WeightSet& set, std::size_t index) {
  const TensorSpec& spec = set.layout().tensors().at(index);
  const auto bytes = set.tensor(index);
  return {spec.name.c_str(),
          static_cast<weft_dtype>(spec.dtype),
          static_cast<std::uint32_t>(spec.shape.size()),
          spec.shape.data(),
          bytes.data(),
          bytes.size()};
}

}  // namespace weft::capi

extern "C" {

using weft::Error;
using weft::ErrorCode;
using weft::Result;
namespace capi = weft::capi;

size_t weft_dtype_size(weft_dtype dtype) {
  const auto known = capi::try_dtype(dtype);
  return known ? weft::dtype_size_bytes(*known) : 0;
}

const char* weft_dtype_name(weft_dtype dtype) {
  const auto known = capi::try_dtype(dtype);
  return known ? weft::dtype_torch_name(*known).data() : nullptr;
}

weft_code weft_dtype_parse(const char* name, weft_dtype* dtype) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(name, "name"));
    WEFT_TRY_VOID(capi::check_given(dtype, "dtype"));
    auto known = weft::try_parse_torch_dtype(name);
    if (!known) known = weft::try_parse_dtype(name);
    if (!known) {
      return Error(ErrorCode::kUnsupported, fmt::format("{}: no dtype that weft knows", name));
    }
    *dtype = static_cast<weft_dtype>(*known);
    return {};
  });
}

const weft_weights* weft_weights_retain(const weft_weights* weights) {
  if (weights != nullptr) weights->references.fetch_add(1, std::memory_order_relaxed);
  return weights;
}

void weft_weights_release(const weft_weights* weights) {
  // The last one sees all that the others did.
  if (weights != nullptr && weights->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
    delete weights;
}

const char* weft_weights_id(const weft_weights* weights) {
  return weights->id.c_str();
}

const char* weft_weights_label(const weft_weights* weights) {
  return weights->label.c_str();
}

size_t weft_weights_tensor_count(const weft_weights* weights) {
  return weights->lease->set->layout().tensors().size();
}

weft_code weft_weights_tensor(const weft_weights* weights, size_t index, weft_tensor* tensor) {
  return capi::guarded([&]() -> Result<void> {
    if (index >= weft_weights_tensor_count(weights)) {
      return Error(ErrorCode::kNotFound, fmt::format("no tensor {}: there are {}", index,
                                                     weft_weights_tensor_count(weights)));
    }
    *tensor = capi::tensor_of(*weights->lease->set, index);
    return {};
  });
}

weft_code weft_weights_find(const weft_weights* weights, const char* name, weft_tensor* tensor) {
  return capi::guarded([&]() -> Result<void> {
    WEFT_TRY_VOID(capi::check_given(name, "name"));
    const auto index = weights->lease->set->layout().try_find(name);
    if (!index) return Error(ErrorCode::kNotFound, fmt::format("no tensor `{}`", name));
    *tensor = capi::tensor_of(*weights->lease->set, *index);
    return {};
  });
}

size_t weft_weights_file_count(const weft_weights* weights) {
  return weights->files->size();
}

weft_code weft_weights_file(const weft_weights* weights, size_t index, weft_file* file) {
  return capi::guarded([&]() -> Result<void> {
    if (index >= weights->files->size()) {
      return Error(ErrorCode::kNotFound,
                   fmt::format("no file {}: there are {}", index, weights->files->size()));
    }
    const auto& [name, text] =
        *std::next(weights->files->begin(), static_cast<std::ptrdiff_t>(index));
    *file = {name.c_str(), text.data(), text.size()};
    return {};
  });
}

}  // extern "C"
