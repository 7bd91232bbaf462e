#include "weft/transfer/internal/pull_data.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "weft/base/wording.h"
#include "weft/format/safetensors.h"
#include "weft/transfer/internal/get_route.h"
#include "weft/transfer/version_layout.h"

namespace weft::internal {
namespace {

using DataPtr = std::shared_ptr<const VersionData>;

// Bytes [begin, ...) of a version's data.
Fill fill_from(const VersionLayout& layout, const VersionData& data, std::uint64_t begin_bytes) {
  return [&layout, &data, begin_bytes](std::uint64_t offset_bytes, std::uint64_t size_bytes,
                                       std::vector<http::BodyPart>& parts) {
    return layout.append(data, begin_bytes + offset_bytes, size_bytes, parts);
  };
}

Result<void> get_manifest(VersionSource& source, const http::Request& request,
                          const ExchangePtr& exchange) {
  WEFT_TRY(const auto content, source.content(std::string(request.param("id"))));
  auto representation = immutable(content->id, 0);
  representation.content_type = "application/json";
  const auto bytes = std::as_bytes(std::span(content->manifest_json));
  return answer_bytes(request, exchange, std::move(representation), {bytes}, content);
}

// A converted version has no bytes that are its own: to a reader they are not there.
Result<DataPtr> open_data(VersionSource& source, const http::Request& request) {
  auto data = source.open(std::string(request.param("id")));
  if (!data && data.error().code() == ErrorCode::kConflict) {
    return Error(ErrorCode::kNotFound, data.error().message());
  }
  return data;
}

// Keeps a version's bytes while they are sent. When they are about to be overwritten, the
// connection is cut, and lets go of this.
std::shared_ptr<const void> hold(DataPtr data, const ExchangePtr& exchange) {
  auto guard = data->on_revoke([exchange] { exchange->close(); });
  return std::make_shared<std::pair<DataPtr, std::shared_ptr<void>>>(std::move(data),
                                                                     std::move(guard));
}

Result<void> get_version_blocks(VersionSource& source, const http::Request& request,
                                const ExchangePtr& exchange) {
  WEFT_TRY(const auto data, open_data(source, request));
  std::vector<std::span<const std::byte>> pieces;
  for (const auto& values : data->content().blocks) {
    pieces.push_back(std::as_bytes(std::span(values)));
  }
  return answer_bytes(request, exchange, immutable(data->content().id, 0), std::move(pieces), data);
}

Result<std::uint64_t> pack_begin(const VersionLayout& layout, std::string_view name) {
  if (const auto pack = try_parse_pack(name, layout.packs())) return *pack * kPackBytes;
  return Error(ErrorCode::kNotFound,
               fmt::format("there is no pack `{}`: the version has {} of {} bytes", name,
                           counted(layout.packs(), "pack"), kPackBytes));
}

Result<void> get_pack(VersionSource& source, const http::Request& request,
                      const ExchangePtr& exchange) {
  WEFT_TRY(const DataPtr data, open_data(source, request));
  WEFT_TRY(const VersionLayout layout, VersionLayout::create(data->content().manifest));
  WEFT_TRY(const std::uint64_t begin_bytes, pack_begin(layout, request.param("n")));
  const std::uint64_t size_bytes = std::min(kPackBytes, layout.total_bytes() - begin_bytes);
  return answer(request, exchange, immutable(data->content().id, size_bytes),
                fill_from(layout, *data, begin_bytes), hold(data, exchange));
}

// The header is made from the manifest; the data is the version's, as far as the tensors go.
Result<void> get_safetensors(VersionSource& source, const http::Request& request,
                             const ExchangePtr& exchange) {
  WEFT_TRY(const DataPtr data, open_data(source, request));
  const Manifest& manifest = data->content().manifest;
  WEFT_TRY(const VersionLayout layout, VersionLayout::create(manifest));
  std::vector<TensorSpec> specs;
  for (const ManifestTensor& tensor : manifest.tensors) specs.push_back(tensor.spec);
  WEFT_TRY(auto made, make_safetensors_header(specs, {{"format", "pt"}}));
  const auto header = std::make_shared<const std::string>(std::move(made));
  const std::uint64_t header_bytes = header->size();
  const auto fill = [&](std::uint64_t offset_bytes, std::uint64_t size_bytes,
                        std::vector<http::BodyPart>& parts) -> Result<void> {
    const std::uint64_t from_header =
        std::min(size_bytes, header_bytes - std::min(header_bytes, offset_bytes));
    if (from_header > 0) {
      parts.push_back({std::as_bytes(std::span(*header)).subspan(offset_bytes, from_header)});
    }
    const std::uint64_t data_offset_bytes = offset_bytes + from_header - header_bytes;
    return layout.append(*data, data_offset_bytes, size_bytes - from_header, parts);
  };
  using Held = std::pair<std::shared_ptr<const std::string>, std::shared_ptr<const void>>;
  return answer(request, exchange,
                immutable(data->content().id, header_bytes + layout.tensor_bytes()), fill,
                std::make_shared<Held>(header, hold(data, exchange)));
}

Result<VersionSource::Blob> find_blob(VersionSource& source, const http::Request& request) {
  const std::string_view text = request.param("digest");
  const auto digest = try_parse_digest(text);
  if (digest) return source.find_blob(*digest);
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("`{}` is no digest: expected blake3: and 64 lower-case hex digits", text),
      "digest");
}

Result<void> get_blob(VersionSource& source, const http::Request& request,
                      const ExchangePtr& exchange) {
  WEFT_TRY(const VersionSource::Blob blob, find_blob(source, request));
  WEFT_TRY(const VersionLayout layout, VersionLayout::create(blob.data->content().manifest));
  const auto representation = immutable(request.param("digest"), layout.size_bytes(blob.entry));
  return answer(request, exchange, representation,
                fill_from(layout, *blob.data, layout.begin_bytes(blob.entry)),
                hold(blob.data, exchange));
}

Result<void> get_blob_blocks(VersionSource& source, const http::Request& request,
                             const ExchangePtr& exchange) {
  WEFT_TRY(const VersionSource::Blob blob, find_blob(source, request));
  const auto values = std::as_bytes(std::span(blob.data->content().blocks.at(blob.entry)));
  return answer_bytes(request, exchange, immutable(request.param("digest"), 0), {values},
                      blob.data);
}

}  // namespace

std::vector<http::Route> data_routes(VersionSource& source) {
  return {
      get_route(source, "/weft/v1/versions/{id}/manifest", get_manifest),
      get_route(source, "/weft/v1/versions/{id}/blocks", get_version_blocks),
      get_route(source, "/weft/v1/versions/{id}/packs/{n}", get_pack),
      get_route(source, "/weft/v1/versions/{id}/model.safetensors", get_safetensors),
      get_route(source, "/weft/v1/blobs/{digest}", get_blob),
      get_route(source, "/weft/v1/blobs/{digest}/blocks", get_blob_blocks),
  };
}

}  // namespace weft::internal
