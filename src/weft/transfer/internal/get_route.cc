#include "weft/transfer/internal/get_route.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "weft/transfer/internal/pull_messages.h"

namespace weft::internal {

http::Route get_route(std::string pattern,
                      std::function<Result<void>(const http::Request&, const ExchangePtr&)> get) {
  http::Route row;
  row.method = "GET";
  row.pattern = std::move(pattern);
  row.access = http::Access::kRead;
  row.handler = [get = std::move(get)](const http::Request& request, const ExchangePtr& exchange) {
    if (const auto answered = get(request, exchange); !answered) {
      exchange->respond(refusal(answered.error()));
    }
  };
  return row;
}

http::Route get_route(VersionSource& source, std::string pattern,
                      Result<void> (*get)(VersionSource&, const http::Request&,
                                          const ExchangePtr&)) {
  return get_route(std::move(pattern),
                   [&source, get](const http::Request& request, const ExchangePtr& exchange) {
                     return get(source, request, exchange);
                   });
}

http::Representation immutable(std::string_view tag, std::uint64_t size_bytes) {
  http::Representation representation;
  representation.etag = http::etag_of(tag);
  representation.size_bytes = size_bytes;
  representation.cache_control = http::kImmutable;
  return representation;
}

Result<void> answer(const http::Request& request, const ExchangePtr& exchange,
                    const http::Representation& representation, const Fill& fill,
                    std::shared_ptr<const void> held) {
  http::Selection selection = http::select(request, representation);
  std::vector<http::BodyPart> parts;
  if (selection.size_bytes > 0) {
    WEFT_TRY_VOID(fill(selection.offset_bytes, selection.size_bytes, parts));
  }
  exchange->respond_from(std::move(selection.head), std::move(parts), std::move(held));
  return {};
}

Result<void> answer_bytes(const http::Request& request, const ExchangePtr& exchange,
                          http::Representation representation,
                          std::vector<std::span<const std::byte>> pieces,
                          std::shared_ptr<const void> held) {
  for (const auto piece : pieces) representation.size_bytes += piece.size();
  const auto fill = [&pieces](std::uint64_t offset_bytes, std::uint64_t size_bytes,
                              std::vector<http::BodyPart>& parts) -> Result<void> {
    for (const auto piece : pieces) {
      const auto skipped = std::min<std::uint64_t>(offset_bytes, piece.size());
      const auto taken = std::min<std::uint64_t>(size_bytes, piece.size() - skipped);
      if (taken > 0) parts.push_back({piece.subspan(skipped, taken)});
      offset_bytes -= skipped;
      size_bytes -= taken;
    }
    return {};
  };
  return answer(request, exchange, representation, fill, std::move(held));
}

std::optional<std::uint64_t> try_parse_pack(std::string_view name, std::uint64_t packs) {
  std::uint64_t pack = 0;
  const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), pack);
  const bool is_one = failed == std::errc() && end == name.data() + name.size() && pack < packs;
  return is_one ? std::optional(pack) : std::nullopt;
}

}  // namespace weft::internal
