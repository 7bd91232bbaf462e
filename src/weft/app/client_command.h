#pragma once
// What the commands share that talk to a server: the connection, progress on the terminal; and how
// every command says an error.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/result.h"
#include "weft/http/client.h"

namespace weft {

struct ClientConfig {
  std::string key;       // "": none is sent
  std::string ca_file;   // of https servers; as in http::ClientOptions
  bool json = false;     // one JSON object on standard output
  bool progress = true;  // on standard error, if it is a terminal
};

// Errors: kInvalidArgument for what is no URL.
Result<std::unique_ptr<http::Client>> make_client(const std::string& url,
                                                  const ClientConfig& config);
// Sends one request. Blocks. Errors: the server's own, with its words; those of the connection.
Result<http::Response> blocking_call(http::Client& server, std::string method, std::string target,
                                     http::Headers headers = {}, std::string body = "");

// Says what went wrong, on standard error or as {"error", "code"}. Returns the exit status.
int report_error(std::string_view command, const Error& error, const ClientConfig& config = {});

// "1.5 GB".
std::string bytes_text(std::uint64_t bytes);

// How far each of several transfers is, as one line that is written over. Thread-safe.
class ProgressLine {
 public:
  ProgressLine(const ClientConfig& config, std::size_t transfers);

  void set(std::size_t transfer, std::uint64_t done_bytes, std::uint64_t total_bytes);
  // Takes the line away, so that something else can be printed.
  void clear();

 private:
  const bool shown_;
  std::mutex mutex_;
  std::vector<double> shares_;
};

}  // namespace weft
