#pragma once
// The names of the rules that a schedule is held to, as a failure prints them. They are those of
// docs/testing.md, "Simulator".

#include <string_view>

namespace weft::sim::rule {

inline constexpr std::string_view kOneVersion = "every token is of one version";
inline constexpr std::string_view kUnmoved = "a failed update leaves what is served";
inline constexpr std::string_view kAllOrNothing = "all of a version or nothing";
inline constexpr std::string_view kTwoSets = "two sets, and no reader sees one change";
inline constexpr std::string_view kOnce = "the same call again happens once";
inline constexpr std::string_view kFenced = "a late writer is fenced";
inline constexpr std::string_view kLease = "a call in progress holds the lease";
inline constexpr std::string_view kRollback = "a rollback is to what it names";
inline constexpr std::string_view kVerified = "bytes are verified before use";
inline constexpr std::string_view kTurn = "whoever lost their turn does not undo it";
inline constexpr std::string_view kAnswer = "an answer says what is so";
inline constexpr std::string_view kLiveness = "the next correct push works";
inline constexpr std::string_view kLeak = "no session is left over";
inline constexpr std::string_view kDurable = "what was acknowledged survives a crash";
inline constexpr std::string_view kHead = "a head moves for one winner";
inline constexpr std::string_view kCollected = "garbage collection takes only garbage";
inline constexpr std::string_view kPulled = "what was pulled is what was asked for";

}  // namespace weft::sim::rule
