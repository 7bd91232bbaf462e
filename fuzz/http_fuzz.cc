// HTTP heads and chunked bodies: whatever arrives, the message ends at the same byte however it was
// cut, and what was understood of a head is understood again when it is written.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weft/base/check.h"
#include "weft/http/representation.h"
#include "weft/http/router.h"
#include "weft/http/wire.h"

namespace weft::http {
namespace {

// The body and how much of `text` it took; nullopt for an error or a body without its end.
struct Decoded {
  std::string body;
  std::size_t taken_bytes = 0;
  bool operator==(const Decoded&) const = default;
};

std::optional<Decoded> try_decode(std::string_view text, std::size_t step_bytes) {
  ChunkScanner chunks;
  Decoded decoded;
  std::size_t arrived = 0;
  while (!chunks.done()) {
    const std::string_view unread = text.substr(decoded.taken_bytes, arrived - decoded.taken_bytes);
    const auto framing = chunks.take_framing(unread);
    if (!framing) return std::nullopt;
    const std::string_view data =
        unread.substr(*framing, std::min<std::uint64_t>(chunks.data_bytes(), unread.size()));
    decoded.body += data;
    if (!data.empty()) chunks.take_data(data.size());
    decoded.taken_bytes += *framing + data.size();
    if (decoded.taken_bytes < arrived || chunks.done()) continue;
    if (arrived == text.size()) return std::nullopt;
    arrived = std::min(text.size(), arrived + step_bytes);
  }
  return decoded;
}

void check_selection(const Request& request) {
  Representation representation;
  representation.etag = "\"a\"";
  representation.size_bytes = 100;
  const Selection selection = select(request, representation);
  WEFT_CHECK(selection.offset_bytes + selection.size_bytes <= representation.size_bytes);
  WEFT_CHECK(selection.head.status != 206 || selection.size_bytes > 0);
}

void check_request(std::string_view head) {
  auto parsed = parse_request_head(head);
  if (!parsed) return;
  Request& request = parsed->request;
  check_selection(request);
  Url server;
  server.host = "a";
  const auto again = parse_request_head(request_head_text(request, server, ""));
  WEFT_CHECK(again.has_value());
  WEFT_CHECK(again->request.method == request.method && again->request.target == request.target);
  WEFT_CHECK(again->framing.empty());
  static const Router router = [] {
    Route route;
    route.method = "GET";
    route.pattern = "/a/{b}";
    route.handler = [](const Request&, const std::shared_ptr<Exchange>&) {};
    return Router::create({route}).value();
  }();
  const auto match = router.match(request);
  WEFT_CHECK(!match || match->route == nullptr || !request.param("b").empty());
}

void check(std::string_view text) {
  const auto size = head_size(text);
  if (!size || *size == 0) return;
  const std::string_view head = text.substr(0, *size);
  for (std::size_t cut = head.size() > 300 ? head.size() - 300 : 0; cut < head.size(); ++cut) {
    WEFT_CHECK(head_size(head.substr(0, cut)).value() == 0);
  }
  check_request(head);
  static_cast<void>(parse_response_head(head, "GET"));
  const std::string_view body = text.substr(*size);
  const auto whole = try_decode(body, body.size());
  WEFT_CHECK(whole == try_decode(body, 1));
  WEFT_CHECK(whole == try_decode(body, 7));
}

}  // namespace
}  // namespace weft::http

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::http::check(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
