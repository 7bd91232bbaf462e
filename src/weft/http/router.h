#pragma once
// The route table: which row answers a request. Immutable.

#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/server.h"

namespace weft::http {

class Router {
 public:
  // Errors: kInvalidArgument for a malformed pattern, a row without exactly one handler, or two
  // rows that match the same request.
  static Result<Router> create(std::vector<Route> routes);

  struct Match {
    const Route* route = nullptr;  // null: see `allow`
    std::string allow;             // methods of the path, "" for an unknown path (404 else 405)
  };
  // Fills request.path, .query and .params from request.target. A literal segment wins over a
  // {name}, the leftmost first. Errors: kInvalidArgument for a target that cannot be decoded.
  Result<Match> match(Request& request) const;

 private:
  struct Row {
    Route route;
    std::vector<std::string> segments;  // "{name}" for a placeholder
  };
  std::vector<Row> rows_;  // in order of preference
};

}  // namespace weft::http
