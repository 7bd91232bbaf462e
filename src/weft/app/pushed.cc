#include "weft/app/pushed.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <system_error>
#include <vector>

#include <boost/json.hpp>
#include <fmt/core.h>
#include <sys/stat.h>

#include "weft/base/file.h"
#include "weft/digest/digest.h"
#include "weft/format/json.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

// Servers that are remembered; the one pushed to longest ago is forgotten.
constexpr std::size_t kMostServers = 64;

std::string text_of(const json::object& object, const char* name) {
  const json::value* const value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

// The newest last. What cannot be read is nothing.
std::vector<PushedVersion> blocking_read(const fs::path& file) {
  std::vector<PushedVersion> versions;
  const auto text = blocking_read_file(file);
  const auto value = text ? parse_json(*text) : Result<json::value>(text.error());
  const json::value* const list =
      value && value->is_object() ? value->get_object().if_contains("pushed") : nullptr;
  if (list == nullptr || !list->is_array()) return versions;
  for (const json::value& item : list->get_array()) {
    if (!item.is_object()) continue;
    const json::object& object = item.get_object();
    versions.push_back({text_of(object, "to"), text_of(object, "id"), text_of(object, "path"),
                        text_of(object, "stamp")});
  }
  return versions;
}

}  // namespace

PushedVersions PushedVersions::of_user() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return fs::path(value == nullptr ? "" : value);
  };
  const fs::path state = variable("XDG_STATE_HOME"), home = variable("HOME");
  if (state.is_absolute()) return PushedVersions(state / "weft/pushed.json");
  if (home.is_absolute()) return PushedVersions(home / ".local/state/weft/pushed.json");
  return PushedVersions("");
}

std::optional<PushedVersion> PushedVersions::blocking_find(const std::string& to) const {
  if (file_.empty()) return std::nullopt;
  for (PushedVersion& version : blocking_read(file_)) {
    const bool is_it = version.to == to && !version.id.empty() && !version.stamp.empty();
    if (is_it && blocking_stamp(version.path) == version.stamp) return std::move(version);
  }
  return std::nullopt;
}

Result<void> PushedVersions::blocking_remember(PushedVersion version) const {
  if (file_.empty()) return {};
  std::vector<PushedVersion> versions = blocking_read(file_);
  std::erase_if(versions, [&](const PushedVersion& other) { return other.to == version.to; });
  if (versions.size() >= kMostServers) versions.erase(versions.begin());
  versions.push_back(std::move(version));
  json::array list;
  for (const PushedVersion& each : versions) {
    list.push_back(
        json::object{{"to", each.to}, {"id", each.id}, {"path", each.path}, {"stamp", each.stamp}});
  }
  std::error_code failed;
  fs::create_directories(file_.parent_path(), failed);
  if (failed) return file_error(file_.parent_path(), "create", failed.value());
  return blocking_write_file(file_,
                             json::serialize(json::object{{"pushed", std::move(list)}}) + "\n");
}

std::string blocking_stamp(const fs::path& path) {
  std::vector<fs::path> files;
  std::error_code failed;
  if (fs::is_directory(path, failed)) {
    for (fs::directory_iterator at(path, failed), end; !failed && at != end; at.increment(failed))
      files.push_back(at->path());
  } else {
    files.push_back(path);
  }
  std::ranges::sort(files);
  std::string text;
  for (const fs::path& file : files) {
    struct stat status {};
    if (failed || ::stat(file.c_str(), &status) != 0) return "";
    text +=
        fmt::format("{} {} {} {} {}.{}\n", file.filename().string(), status.st_size, status.st_dev,
                    status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return digest_text(digest_of(std::as_bytes(std::span(text))));
}

}  // namespace weft
