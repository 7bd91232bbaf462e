#pragma once
// ScoreServer: a scorer of this program as a server that speaks what HttpScorer (scorer.h) asks: a
// reward model that was trained in one run scores the answers of others.

#include <cstdint>
#include <memory>
#include <string>

#include "weft/base/result.h"
#include "weft/http/server.h"
#include "weft/trainer/experience.h"

namespace weft {

// What a body of `POST /score` asks for, each sample a problem of its own with one answer. Errors:
// kInvalidArgument naming the field.
Result<Experience> parse_score_request(std::string_view body);

// Answers POST /score, one request after the other on a thread of its own, and GET /health, from
// create() to destruction. Thread-safe.
class ScoreServer {
 public:
  // Errors: those of http::Server.
  static Result<std::unique_ptr<ScoreServer>> create(std::unique_ptr<Scorer> scorer,
                                                     const http::ServerOptions& options);
  virtual ~ScoreServer() = default;

  virtual std::uint16_t port() const = 0;
};

}  // namespace weft
