#pragma once
// The JSON bodies of the data plane, in and out. Pure. docs/protocol.md.

#include <string>
#include <string_view>

#include "weft/base/result.h"
#include "weft/http/message.h"
#include "weft/transfer/upload_host.h"

namespace weft::internal {

// ?label= and ?on_update= of a request without a JSON body. Errors: kInvalidArgument.
Result<CommitRequest> parse_commit_query(const http::Request& request);
// {"label", "head", "if_match", "parent", "origin", "on_update"}, each optional, or no body.
// Errors: kInvalidArgument.
Result<CommitRequest> parse_commit_request(std::string_view body);
// {"tensors": [{"name", "dtype", "shape", "blocks"?}], "files"?: [{"name", "size", "blocks"?}],
// "base"?, "partial"?, "replace"?}. Errors: kInvalidArgument naming the field.
Result<UploadOffer> parse_upload_request(std::string_view body);

std::string upload_json(const std::string& upload_id, const UploadProgress& progress);
std::string sealed_json(const SealedVersion& sealed);
std::string commit_json(const CommitReport& report);
std::string version_json(const VersionName& version);
// `instance`: of this process, so that clients see a restart.
std::string status_json(const UploadHost::Status& status, const std::string& instance,
                        const std::string& upload_id);
std::string blocks_json(std::uint64_t verified, std::uint64_t repeated, std::uint64_t busy);

}  // namespace weft::internal
