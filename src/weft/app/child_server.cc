#include "weft/app/child_server.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

// glibc 2.36 does not say so itself.
extern "C" {
#include <sys/pidfd.h>
}

#include "weft/base/file.h"
#include "weft/http/client.h"

namespace weft {
namespace {

// Between looks at the log of a starting server.
constexpr std::chrono::milliseconds kLogInterval{20};
constexpr std::chrono::seconds kGrace{5};  // to end by itself

// In the child, between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(char* const* arguments, char* const* environment, int log, pid_t parent) {
  // A terminal's Ctrl-C is for the trainer alone, which then ends the server in order.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execve(arguments[0], arguments, environment);
  ::_exit(127);
}

// As exec wants it; `words` must outlive it.
std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// This process's, with another admin key.
std::vector<std::string> environment_with(const std::string& admin_key) {
  const std::string name = "WEFT_ADMIN_KEY=";
  std::vector<std::string> words{name + admin_key};
  for (char** word = environ; *word != nullptr; ++word) {
    if (!std::string_view(*word).starts_with(name)) words.emplace_back(*word);
  }
  return words;
}

std::string last_line(const std::filesystem::path& log) {
  const auto text = blocking_read_file(log);
  if (!text) return "";
  const std::size_t end = text->find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t begin = text->rfind('\n', end);
  return text->substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
}

// The address that the server says it listens on.
std::string url_in_log(const std::filesystem::path& log) {
  constexpr std::string_view kPrefix = "http://127.0.0.1:";
  const auto text = blocking_read_file(log);
  const std::size_t at = text ? text->find(kPrefix) : std::string::npos;
  if (at == std::string::npos) return "";
  const std::size_t end = text->find_first_not_of("0123456789", at + kPrefix.size());
  // A line without its end may hold half a port.
  return end == std::string::npos ? "" : text->substr(at, end - at);
}

}  // namespace

Result<std::unique_ptr<ChildServer>> ChildServer::blocking_start(const ChildServerOptions& options,
                                                                 const std::atomic<bool>& stop) {
  std::vector<std::string> words{options.program.string()};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> settings = environment_with(options.admin_key);
  const std::vector<char*> arguments = pointers(words), environment = pointers(settings);
  const int log = ::open(options.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (log < 0) {
    return Error(ErrorCode::kForbidden, fmt::format("{}: cannot write: {}", options.log.string(),
                                                    std::generic_category().message(errno)));
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(arguments.data(), environment.data(), log, parent);
  ::close(log);
  if (pid < 0) return Error(ErrorCode::kInternal, "cannot fork a server process");

  std::unique_ptr<ChildServer> server(new ChildServer(pid, ::pidfd_open(pid, 0), options.log));
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  while (!server->blocking_answers()) {
    if (auto ended = server->try_ended()) return Error(ErrorCode::kInternal, std::move(*ended));
    if (stop.load()) return Error(ErrorCode::kCancelled, "interrupted");
    if (std::chrono::steady_clock::now() > deadline) {
      return Error(ErrorCode::kDeadline,
                   fmt::format("the server did not answer in {} s, see {}",
                               options.timeout.count() / 1000, options.log.string()));
    }
    server->blocking_wait(kLogInterval);
  }
  return server;
}

ChildServer::~ChildServer() {
  if (!try_ended()) {
    ::kill(pid_, SIGTERM);
    blocking_wait(kGrace);
  }
  if (!try_ended()) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(pid_fd_);
}

void ChildServer::blocking_wait(std::chrono::milliseconds limit) const {
  pollfd ended{pid_fd_, POLLIN, 0};
  ::poll(&ended, 1, static_cast<int>(limit.count()));
}

std::optional<std::string> ChildServer::try_ended() {
  int status = 0;
  if (pid_ != 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    pid_ = 0;
    ending_ = WIFSIGNALED(status)
                  ? fmt::format("the server was ended by signal {}", WTERMSIG(status))
                  : fmt::format("the server ended with status {}", WEXITSTATUS(status));
    if (const std::string line = last_line(log_); !line.empty()) ending_ += ": " + line;
  }
  return pid_ == 0 ? std::optional(ending_) : std::nullopt;
}

bool ChildServer::blocking_answers() {
  if (url_.empty()) url_ = url_in_log(log_);
  if (url_.empty()) return false;
  auto url = http::Url::parse(url_);
  if (!url) return false;
  http::Request request;
  request.method = "GET";
  request.target = "/health";
  const auto response = http::Client::make(std::move(*url))->blocking_send(request);
  return response && response->status == 200;
}

}  // namespace weft
