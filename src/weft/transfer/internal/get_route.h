#pragma once
// What the routes share that hand out bytes which never change: a version's, a delta's.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/representation.h"
#include "weft/http/server.h"
#include "weft/transfer/version_source.h"

namespace weft::internal {

using ExchangePtr = std::shared_ptr<http::Exchange>;

// A GET for who has the read key; `get` answers, or its error is the answer.
http::Route get_route(std::string pattern,
                      std::function<Result<void>(const http::Request&, const ExchangePtr&)> get);
// The same of a source, which must outlive the route.
http::Route get_route(VersionSource& source, std::string pattern,
                      Result<void> (*get)(VersionSource&, const http::Request&,
                                          const ExchangePtr&));

// Bytes that `tag`, an id or a digest, names for ever.
http::Representation immutable(std::string_view tag, std::uint64_t size_bytes);

// Appends what lies at [offset, offset + size) of a representation.
using Fill = std::function<Result<void>(std::uint64_t offset_bytes, std::uint64_t size_bytes,
                                        std::vector<http::BodyPart>& parts)>;
// Answers with what is asked for of `representation`; `held` keeps its bytes.
Result<void> answer(const http::Request& request, const ExchangePtr& exchange,
                    const http::Representation& representation, const Fill& fill,
                    std::shared_ptr<const void> held);
// The same of `pieces`, one after the other, which lie in memory for as long as `held` is.
Result<void> answer_bytes(const http::Request& request, const ExchangePtr& exchange,
                          http::Representation representation,
                          std::vector<std::span<const std::byte>> pieces,
                          std::shared_ptr<const void> held);

// The number that a path gives of one of `packs` packs; nothing where there is no such pack.
std::optional<std::uint64_t> try_parse_pack(std::string_view name, std::uint64_t packs);

}  // namespace weft::internal
