#pragma once
// What the tests of a store share: a small model, a push step by step, and what is pulled back.

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/store/store.h"

namespace weft::store_test {

using Bytes = std::vector<std::byte>;

// A version's tensors and files with their bytes.
struct Model {
  std::vector<TensorSpec> specs;
  std::vector<Bytes> data;  // [tensors]
  std::map<std::string, Bytes> files;

  std::map<std::string, Bytes> by_name() const;
  // Of entry `entry`, as an upload numbers them.
  const Bytes& entry(std::size_t entry) const;
  std::size_t entries() const { return data.size() + files.size(); }
};
// Bytes that follow from the seed: a tensor of two blocks, two small ones, an empty one, and a
// config.json.
Model random_model(unsigned seed);
// The same without the large one.
Model small_model(unsigned seed);

std::span<const std::byte> block_of(const Bytes& entry, std::uint64_t block);
UploadOffer offer_of(const Model& model, bool announced);

// A commit that moves label and head, each where it is not "".
CommitRequest as(const std::string& label, const std::string& head = "",
                 std::optional<std::string> if_match = std::nullopt);

// The calls of an UploadHost, waited for.
Result<UploadProgress> open_upload(Store& store, const std::string& owner, UploadOffer offer);
Result<void> send(Store& store, Epoch epoch, std::uint64_t entry, std::uint64_t block,
                  Encoding encoding, std::span<const std::byte> payload,
                  const std::optional<Digest>& digest);
// All blocks that are missing, from the front, at most `count`. Returns how many were sent.
Result<std::size_t> send_missing(Store& store, const std::string& owner, Epoch epoch,
                                 const Model& model, std::size_t count = SIZE_MAX);
Result<SealedVersion> seal(Store& store, const std::string& owner, Epoch epoch);
Result<CommitReport> commit(Store& store, const std::string& owner, Epoch epoch,
                            CommitRequest request = {});
Result<CommitReport> push(Store& store, const Model& model, CommitRequest request = {},
                          bool announced = true, const std::string& owner = "trainer");
Result<CommitReport> move_head(Store& store, const std::string& name, const std::string& id,
                               std::optional<std::string> expected = std::nullopt);

// Everything of a version, read from where a reader is sent.
Result<std::map<std::string, Bytes>> pull(Store& store, const std::string& id);
Bytes read_parts(const std::vector<http::BodyPart>& parts);

}  // namespace weft::store_test
