#include "weft/store/store_fixture.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace weft::store_test {
namespace {

// Runs a call that answers through a callback.
template <typename T, typename Call>
Result<T> wait_for(Call call) {
  auto promise = std::make_shared<std::promise<Result<T>>>();
  auto future = promise->get_future();
  call([promise](Result<T> result) { promise->set_value(std::move(result)); });
  return future.get();
}

Model model_of(std::vector<TensorSpec> specs, unsigned seed) {
  Model model;
  model.specs = std::move(specs);
  std::mt19937_64 random(seed);
  for (const TensorSpec& spec : model.specs) {
    Bytes& bytes = model.data.emplace_back(tensor_size_bytes(spec).value());
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(&bytes[i], &word, std::min(sizeof(word), bytes.size() - i));
    }
  }
  const std::string config = "{\"seed\": " + std::to_string(seed) + "}";
  const auto view = std::as_bytes(std::span(config));
  model.files["config.json"] = Bytes(view.begin(), view.end());
  return model;
}

}  // namespace

std::map<std::string, Bytes> Model::by_name() const {
  std::map<std::string, Bytes> all = files;
  for (std::size_t i = 0; i < specs.size(); ++i) all[specs[i].name] = data[i];
  return all;
}

const Bytes& Model::entry(std::size_t entry) const {
  if (entry < data.size()) return data[entry];
  return std::next(files.begin(), static_cast<std::ptrdiff_t>(entry - data.size()))->second;
}

Model random_model(unsigned seed) {
  return model_of({{"model.embed_tokens.weight", DType::kBF16, {4096, 1024 + 8}},
                   {"model.norm.weight", DType::kBF16, {64}},
                   {"a.bias", DType::kF32, {3, 5}},
                   {"z.empty", DType::kF32, {0, 7}}},
                  seed);
}

Model small_model(unsigned seed) {
  return model_of({{"b.weight", DType::kBF16, {64, 8}},
                   {"model.norm.weight", DType::kBF16, {64}},
                   {"a.bias", DType::kF32, {3, 5}}},
                  seed);
}

std::span<const std::byte> block_of(const Bytes& entry, std::uint64_t block) {
  const auto begin = static_cast<std::size_t>(block * kBlockBytes);
  return std::span(entry).subspan(
      begin, std::min<std::size_t>(entry.size() - begin, static_cast<std::size_t>(kBlockBytes)));
}

UploadOffer offer_of(const Model& model, bool announced) {
  UploadOffer offer;
  offer.tensors = model.specs;
  for (const auto& [name, bytes] : model.files) offer.files.push_back({name, bytes.size()});
  Hasher skeleton;
  for (std::size_t entry = 0; entry < model.entries(); ++entry) {
    auto& blocks = offer.blocks.emplace_back();
    const Bytes& bytes = model.entry(entry);
    for (std::uint64_t block = 0; announced && block < block_count(bytes.size()); ++block) {
      blocks.push_back(block_digest(bytes.size(), block, block_of(bytes, block)));
      skeleton.update(blocks.back().bytes);
    }
  }
  offer.skeleton = skeleton.finish();
  return offer;
}

CommitRequest as(const std::string& label, const std::string& head,
                 std::optional<std::string> if_match) {
  CommitRequest request;
  if (!label.empty()) request.label = label;
  if (!head.empty()) request.head = head;
  request.if_match = std::move(if_match);
  return request;
}

Result<UploadProgress> open_upload(Store& store, const std::string& owner, UploadOffer offer) {
  return wait_for<UploadProgress>(
      [&](auto done) { store.uploads()->open_upload(owner, std::move(offer), done); });
}

Result<void> send(Store& store, Epoch epoch, std::uint64_t entry, std::uint64_t block,
                  Encoding encoding, std::span<const std::byte> payload,
                  const std::optional<Digest>& digest) {
  WEFT_TRY(const auto writer,
           store.uploads()->claim(epoch, entry, block, encoding, payload.size()));
  while (!payload.empty()) {
    const auto buffer = writer->buffer();
    const auto piece = payload.first(std::min(payload.size(), buffer.size()));
    std::ranges::copy(piece, buffer.begin());
    WEFT_TRY_VOID(writer->filled(piece.size()));
    payload = payload.subspan(piece.size());
  }
  return writer->settle(digest);
}

Result<std::size_t> send_missing(Store& store, const std::string& owner, Epoch epoch,
                                 const Model& model, std::size_t count) {
  WEFT_TRY(const UploadProgress progress, store.uploads()->progress(owner, epoch));
  std::size_t sent = 0;
  for (const auto& run : progress.missing) {
    const Bytes& bytes = model.entry(run.tensor);
    for (std::uint64_t block = run.first_block; block < run.first_block + run.blocks; ++block) {
      if (sent == count) return sent;
      const auto payload = block_of(bytes, block);
      WEFT_TRY_VOID(send(store, epoch, run.tensor, block, Encoding::kIdentity, payload,
                         block_digest(bytes.size(), block, payload)));
      ++sent;
    }
  }
  return sent;
}

Result<SealedVersion> seal(Store& store, const std::string& owner, Epoch epoch) {
  return wait_for<SealedVersion>([&](auto done) { store.uploads()->seal(owner, epoch, done); });
}

Result<CommitReport> commit(Store& store, const std::string& owner, Epoch epoch,
                            CommitRequest request) {
  return wait_for<CommitReport>(
      [&](auto done) { store.uploads()->commit(owner, epoch, std::move(request), done); });
}

Result<CommitReport> push(Store& store, const Model& model, CommitRequest request, bool announced,
                          const std::string& owner) {
  WEFT_TRY(const UploadProgress opened, open_upload(store, owner, offer_of(model, announced)));
  WEFT_TRY_VOID(send_missing(store, owner, opened.epoch, model));
  WEFT_TRY_VOID(seal(store, owner, opened.epoch));
  return commit(store, owner, opened.epoch, std::move(request));
}

Result<CommitReport> move_head(Store& store, const std::string& name, const std::string& id,
                               std::optional<std::string> expected) {
  return wait_for<CommitReport>([&](auto done) {
    store.versions().move_head("somebody", name, id, std::move(expected), done);
  });
}

Bytes read_parts(const std::vector<http::BodyPart>& parts) {
  Bytes bytes;
  for (const http::BodyPart& part : parts) {
    const std::size_t before = bytes.size();
    bytes.resize(before + static_cast<std::size_t>(part.size()));
    part.file->blocking_read_at(part.offset_bytes, std::span(bytes).subspan(before)).value();
  }
  return bytes;
}

Result<std::map<std::string, Bytes>> pull(Store& store, const std::string& id) {
  WEFT_TRY(const auto data, store.versions().open(id));
  const Manifest& manifest = data->content().manifest;
  std::map<std::string, Bytes> all;
  std::size_t entry = 0;
  const auto take = [&](const std::string& name, std::uint64_t size_bytes) -> Result<void> {
    std::vector<http::BodyPart> parts;
    WEFT_TRY_VOID(data->append(entry++, 0, size_bytes, parts));
    all[name] = read_parts(parts);
    return {};
  };
  for (const auto& tensor : manifest.tensors) {
    WEFT_TRY_VOID(take(tensor.spec.name, tensor_size_bytes(tensor.spec).value()));
  }
  for (const auto& file : manifest.files) WEFT_TRY_VOID(take(file.name, file.size_bytes));
  return all;
}

}  // namespace weft::store_test
