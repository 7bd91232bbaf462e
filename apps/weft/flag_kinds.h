#pragma once
// Kinds of flags that several commands have.

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace weft {

// One of the names, which must outlive the parser; `value` is the default.
template <typename T>
void add_choice(CLI::App& command, const std::string& name, T& value,
                const std::map<std::string, T>& names, const std::string& what) {
  std::vector<std::string> words;
  std::string standard;
  for (const auto& [word, meaning] : names) {
    words.push_back(word);
    if (meaning == value) standard = word;
  }
  command
      .add_option_function<std::string>(
          name, [&value, &names](const std::string& word) { value = names.at(word); }, what)
      ->check(CLI::IsMember(words))
      ->default_str(standard);
}

// Bytes, or as 4GiB; `least` at least.
void add_bytes(CLI::App& command, const std::string& name, std::uint64_t& value,
               const std::string& what, std::int64_t least = 0);

// Seconds, to the millisecond where the value has them.
template <typename Duration>
void add_seconds(CLI::App& command, const std::string& name, Duration& value,
                 const std::string& what, const CLI::Validator& check) {
  command
      .add_option_function<double>(
          name,
          [&value](double seconds) {
            value = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
          },
          what)
      ->check(check)
      ->default_str(
          std::to_string(std::chrono::duration_cast<std::chrono::seconds>(value).count()));
}

// Checks of a flag's value: what is wrong with it, "" if nothing is.
std::string check_at_least_one(const std::string& text);
std::string check_text(const std::string& text);     // UTF-8 without control characters
std::string check_id(const std::string& text);       // a version's
std::string check_session(const std::string& text);  // what the header Weft-Session may have

// A number from `least` to `most`.
CLI::Validator between(double least, double most);

}  // namespace weft
