// What a receiver does with versions: encodings, files, bases, rolling back, handing out.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/protocol/block_frame.h"
#include "weft/testing/temporary_dir.h"
#include "weft/transfer/receiver.h"
#include "weft/transfer/state_dir.h"
#include "weft/transfer/transfer_fixture.h"

namespace weft {
namespace {

using namespace transfer_test;

constexpr const char* kWeights = "/weft/v1/weights";
constexpr const char* kMain = "/weft/v1/heads/main";

std::string sparse_body(const Tensors& base, const Tensors& next) {
  return changes_body(base, next, sparse_frame);
}

http::Response put_head(Bench& bench, const std::string& id, const std::string& if_match = "") {
  http::Request request;
  request.method = "PUT";
  request.target = kMain;
  request.body = fmt::format(R"({{"id":"{}"}})", id);
  if (!if_match.empty()) request.headers.add("If-Match", '"' + if_match + '"');
  return bench.client().blocking_send(request).value();
}

TEST(Encodings, ZstdAndSparseFramesMakeTheSameVersion) {
  Bench bench(large_model());
  const auto next = changed(bench.first());
  const auto upload = open_upload(bench, with(skeleton(next), base_member(bench)));
  const std::size_t norm = next.find("model.norm.weight");
  std::string body;
  for (std::size_t i = 0; i < next.data.size(); ++i) {
    for (std::uint64_t block = 0; block < block_count(next.data[i].size()); ++block) {
      const auto bytes = std::span<const std::byte>(next.data[i]);
      body += i == norm ? frame(i, block, Encoding::kZstd, encode_zstd(bytes),
                                block_digest(bytes.size(), block, bytes))
                        : sparse_frame(bench.first(), next, i, block);
    }
  }

  const auto answer = bench.call("PUT", upload + "/blocks", body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  ASSERT_EQ(seal_and_commit(bench, upload).status, 200);

  EXPECT_EQ(bench.served(), next.bytes());
  const auto metrics = bench.receiver().metrics();
  EXPECT_GT(metrics.bytes.at("sparse"), 0u);
  EXPECT_GT(metrics.bytes.at("zstd"), 0u);
  EXPECT_EQ(metrics.committed, 1u);
}

TEST(Encodings, ZstdConvertsToo) {
  Bench bench(small_model());
  auto next = random_tensors(small_model(), 3);
  const std::size_t norm = next.find("model.norm.weight");
  next.specs[norm].dtype = DType::kBF16;
  next.data[norm].assign(32, std::byte{0x3f});
  const auto upload = open_upload(bench, skeleton(next));
  std::string body;
  for (std::size_t i = 0; i < next.data.size(); ++i) {
    const std::span<const std::byte> bytes(next.data[i]);
    if (!bytes.empty())
      body +=
          frame(i, 0, Encoding::kZstd, encode_zstd(bytes), block_digest(bytes.size(), 0, bytes));
  }

  ASSERT_EQ(bench.call("PUT", upload + "/blocks", body).status, 200);
  ASSERT_EQ(seal_and_commit(bench, upload).status, 200);

  EXPECT_TRUE(bench.current().converted);
  EXPECT_EQ(std::to_integer<int>(bench.served()["model.norm.weight"][3]), 0x3f);
}

TEST(Encodings, BadPayloadsAreRefusedAndTheBlockIsOpenAgain) {
  Bench bench(small_model());
  const auto before = bench.served();
  const auto base = bench.first();
  const auto next = changed(base);
  const auto other = random_tensors(bench.model(), 7);
  const auto other_base = changed(base, 800);
  const auto upload = open_upload(bench, with(skeleton(next), base_member(bench)));
  const auto put = [&](const std::string& body) {
    return bench.call("PUT", upload + "/blocks", body).status;
  };
  std::string cut = sparse_frame(base, next, 0, 0);
  cut.back() = static_cast<char>(cut.back() ^ 1);

  EXPECT_EQ(put(cut), 422);
  EXPECT_EQ(put(sparse_frame(other_base, next, 0, 0)), 409);
  const Bytes junk(64, std::byte{7});
  EXPECT_EQ(put(frame(0, 0, Encoding::kZstd, junk, digest_of(junk))), 422);
  EXPECT_EQ(put(frame(0, 0, Encoding::kZstd, {}, digest_of(junk))), 400);
  EXPECT_EQ(put(frame(0, 0, Encoding::kSparse, Bytes(20'000), digest_of(junk))), 400);
  EXPECT_EQ(put(frame(0, 0, static_cast<Encoding>(9), junk, digest_of(junk))), 400);
  const std::span<const std::byte> wrong(other.data[0]);
  EXPECT_EQ(put(frame(0, 0, Encoding::kZstd, encode_zstd(wrong), digest_of(next.data[0]))), 422);

  EXPECT_EQ(bench.served(), before);
  EXPECT_EQ(put(sparse_body(base, next)), 200);
  EXPECT_EQ(seal_and_commit(bench, upload).status, 200);
  EXPECT_EQ(bench.served(), next.bytes());
  EXPECT_EQ(bench.receiver().metrics().refusals.at("corrupt"), 3u);
}

TEST(Bases, OneThatDoesNotServeIsNotFound) {
  Bench bench(small_model());
  const auto answer =
      bench.call("POST", "/weft/v1/uploads",
                 with(skeleton(bench.first()), fmt::format(R"("base":"blake3:{:064}")", 1)));
  EXPECT_EQ(answer.status, 404) << answer.body;
  EXPECT_EQ(bench.state(), "idle");
}

TEST(Bases, APartialUploadKeepsTheRest) {
  Bench bench(large_model());
  auto next = bench.first();
  const std::size_t norm = next.find("model.norm.weight");
  next.data[norm] = changed(next).data[norm];
  const Tensors sent{{next.specs[norm]}, {next.data[norm]}};
  EXPECT_EQ(
      bench.call("POST", "/weft/v1/uploads", with(skeleton(sent), R"("partial":true)")).status,
      400);
  EXPECT_EQ(bench.call("POST", "/weft/v1/uploads", with(skeleton(sent), base_member(bench))).status,
            400);

  const auto upload =
      open_upload(bench, with(skeleton(sent), R"("partial":true,)" + base_member(bench)));
  EXPECT_NE(bench.call("GET", upload).body.find(R"("missing":[[0,0,1]])"), std::string::npos);
  ASSERT_EQ(bench.call("PUT", upload + "/blocks", block_body(sent, {{0, 0}})).status, 200);
  ASSERT_EQ(seal_and_commit(bench, upload).status, 200);

  EXPECT_EQ(bench.served(), next.bytes());
  const std::string id = bench.current().id;
  ASSERT_EQ(bench.call("PUT", kWeights, next.file()).status, 200);
  EXPECT_EQ(bench.current().id, id);  // the same content, however it came
}

ReceiverOptions options_with_files() {
  ReceiverOptions options;
  options.files = std::make_shared<const ModelFiles>(
      ModelFiles{{"config.json", "{}"}, {"tokenizer.json", "old"}});
  return options;
}

std::string with_file(const std::string& offer, const std::string& name, const std::string& text) {
  return with(offer, fmt::format(R"("files":[{{"name":"{}","size":{}}}])", name, text.size()));
}

std::string file_frame(std::size_t entry, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return frame(entry, 0, Encoding::kIdentity, bytes, digest_of(bytes));
}

TEST(Files, OfTheFolderAreInTheManifestAndStayWhenNoneAreSent) {
  Bench bench(small_model(), options_with_files());
  const auto manifest_of = [&] {
    return bench.call("GET", "/weft/v1/versions/" + bench.current().id + "/manifest").body;
  };
  EXPECT_NE(manifest_of().find(R"("name":"tokenizer.json","size":3)"), std::string::npos);

  ASSERT_EQ(bench.call("PUT", kWeights, random_tensors(small_model(), 4).file()).status, 200);

  EXPECT_NE(manifest_of().find(R"("name":"tokenizer.json","size":3)"), std::string::npos);
  EXPECT_TRUE(bench.target().files().empty());  // none were handed over: they are what it has
}

TEST(Files, ThatAreSentTakeOverWithTheVersionAndGoBackWithIt) {
  Bench bench(small_model(), options_with_files());
  const std::string first = bench.current().id;
  const auto next = random_tensors(small_model(), 4);
  const auto upload = open_upload(bench, with_file(skeleton(next), "tokenizer.json", "newer"));
  std::string body = file_frame(next.specs.size(), "newer");
  for (std::size_t i = 0; i < next.specs.size(); ++i) {
    if (!next.data[i].empty()) body += block_body(next, {{i, 0}});
  }
  ASSERT_EQ(bench.call("PUT", upload + "/blocks", body).status, 200);

  ASSERT_EQ(seal_and_commit(bench, upload).status, 200);
  EXPECT_EQ(bench.target().files(),
            (ModelFiles{{"config.json", "{}"}, {"tokenizer.json", "newer"}}));
  ASSERT_EQ(put_head(bench, first).status, 200);

  EXPECT_EQ(bench.target().files().at("tokenizer.json"), "old");
}

TEST(Files, ThatCannotTakeOverAreAConflictThatNamesThem) {
  Bench bench(small_model(), options_with_files());
  const auto before = bench.served();
  const auto next = random_tensors(small_model(), 4);
  const auto upload = open_upload(bench, with_file(skeleton(next), "config.json", "bad"));
  std::string body = file_frame(next.specs.size(), "bad");
  for (std::size_t i = 0; i < next.specs.size(); ++i) {
    if (!next.data[i].empty()) body += block_body(next, {{i, 0}});
  }
  ASSERT_EQ(bench.call("PUT", upload + "/blocks", body).status, 200);

  const auto sealed = bench.call("POST", upload + "/seal");

  EXPECT_EQ(sealed.status, 409);
  EXPECT_NE(sealed.body.find("hidden_size"), std::string::npos) << sealed.body;
  EXPECT_EQ(bench.served(), before);
  EXPECT_EQ(bench.state(), "idle");
}

TEST(Files, ThatDoNotMakeAModelOrArePathsAreRefused) {
  Bench bench(small_model());
  for (const char* name : {"../x", "a/b", ".", "..", ".x", "", "model.safetensors", "run.py"}) {
    EXPECT_EQ(bench.call("POST", "/weft/v1/uploads", with_file(skeleton(bench.first()), name, "x"))
                  .status,
              400)
        << name;
  }
}

TEST(Rollback, ToTheResidentVersionIsOneCallAndMayBeRepeated) {
  Bench bench(small_model());
  const auto first = bench.current();
  ASSERT_EQ(bench
                .call("PUT", std::string(kWeights) + "?label=step-1",
                      random_tensors(small_model(), 2).file())
                .status,
            200);
  const auto second = bench.current();
  EXPECT_FALSE(bench.target().last_was_rollback());

  EXPECT_EQ(put_head(bench, fmt::format("blake3:{:064}", 1)).status, 404);
  EXPECT_EQ(put_head(bench, first.id, first.id).status, 412);
  const auto answer = put_head(bench, first.id, second.id);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(put_head(bench, first.id).status, 200);

  EXPECT_EQ(bench.current(), first);
  EXPECT_EQ(bench.served(), bench.first().bytes());
  EXPECT_TRUE(bench.target().last_was_rollback());
  EXPECT_EQ(bench.target().commits(), 2u);
  EXPECT_EQ(put_head(bench, second.id).status, 200);
  EXPECT_EQ(bench.current(), second);
  EXPECT_EQ(bench.receiver().metrics().rolled_back, 2u);
}

TEST(Source, HandsOutWhatItServesAndWhatItServedBefore) {
  Bench bench(large_model(), options_with_files());
  const auto first = bench.current();
  ASSERT_EQ(bench.call("PUT", kWeights, random_tensors(large_model(), 2).file()).status, 200);

  const auto pack = bench.call("GET", "/weft/v1/versions/" + first.id + "/packs/0");

  EXPECT_EQ(pack.status, 200);
  std::string expected;
  for (const auto& [name, bytes] : bench.first().bytes()) {
    for (const std::byte byte : bytes) expected += std::to_integer<char>(byte);
  }
  EXPECT_EQ(pack.body, expected + "{}old");
  const auto versions = bench.receiver().source().versions();
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions[0].state, "serving");
  EXPECT_EQ(versions[1].state, "retired");
  EXPECT_EQ(versions[1].id, first.id);
}

TEST(Source, AReaderOfTheRetiredSetIsRevokedAndStagingWaitsForIt) {
  ReceiverOptions options;
  options.reader_grace = std::chrono::milliseconds(10);
  Bench bench(small_model(), options);
  const auto first = bench.current();
  ASSERT_EQ(bench.call("PUT", kWeights, random_tensors(small_model(), 2).file()).status, 200);
  VersionSource& source = bench.receiver().source();
  auto data = source.open(first.id).value();
  std::promise<void> revoked;
  auto guard = data->on_revoke([&] { revoked.set_value(); });

  // A body cannot wait: it is told to come again.
  EXPECT_EQ(bench.call("PUT", kWeights, bench.first().file()).status, 503);
  auto opening = std::async(std::launch::async, [&] {
    return bench.call("POST", "/weft/v1/uploads", skeleton(bench.first())).status;
  });
  EXPECT_EQ(source.open(first.id).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(revoked.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(bench.state(), "idle");
  std::vector<http::BodyPart> parts;
  ASSERT_TRUE(data->append(0, 0, 4, parts));
  EXPECT_TRUE(std::ranges::equal(parts[0].bytes, std::span(bench.first().data[0]).first(4)));
  guard.reset();
  data.reset();

  EXPECT_EQ(opening.get(), 201);
}

TEST(Source, AConvertedVersionHasAManifestAndNoBytes) {
  Bench bench(small_model());
  auto next = random_tensors(small_model(), 3);
  const std::size_t norm = next.find("model.norm.weight");
  next.specs[norm].dtype = DType::kBF16;
  next.data[norm].assign(32, std::byte{0x3f});
  ASSERT_EQ(bench.call("PUT", kWeights, next.file()).status, 200);

  const std::string url = "/weft/v1/versions/" + bench.current().id;

  EXPECT_EQ(bench.call("GET", url + "/manifest").status, 200);
  EXPECT_EQ(bench.call("GET", url + "/packs/0").status, 404);
}

TEST(Heads, AReceiverHasMainAlone) {
  Bench bench(small_model());
  const auto next = random_tensors(small_model(), 2);
  ASSERT_EQ(bench.call("PUT", std::string(kWeights) + "?commit=false", next.file()).status, 200);
  const auto upload =
      "/weft/v1/uploads/" + member(bench.call("GET", "/weft/v1/status").body, "upload");

  const auto refused = bench.call("POST", upload + "/commit", R"({"head":"canary"})");

  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("`canary`"), std::string::npos) << refused.body;
  EXPECT_EQ(bench.call("POST", upload + "/commit", R"({"head":"main"})").status, 200);
  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(OnUpdate, IsTheCommitsOrTheServers) {
  ReceiverOptions options;
  options.on_update = OnUpdate::kRecompute;
  Bench bench(small_model(), options);
  const auto push = [&](unsigned seed, const std::string& body) {
    const auto next = random_tensors(small_model(), seed);
    EXPECT_EQ(bench.call("PUT", std::string(kWeights) + "?commit=false", next.file()).status, 200);
    const auto upload =
        "/weft/v1/uploads/" + member(bench.call("GET", "/weft/v1/status").body, "upload");
    return bench.call("POST", upload + "/commit", body).status;
  };

  EXPECT_EQ(push(2, ""), 200);
  EXPECT_EQ(bench.target().last_on_update(), OnUpdate::kRecompute);
  EXPECT_EQ(push(3, R"({"on_update":"abort"})"), 200);
  EXPECT_EQ(bench.target().last_on_update(), OnUpdate::kAbort);
  EXPECT_EQ(push(4, R"({"on_update":"never"})"), 400);
  EXPECT_EQ(bench.target().last_on_update(), OnUpdate::kAbort);
}

TEST(OnUpdate, AThirdVersionWaitsForSequencesThatFinish) {
  ReceiverOptions options;
  options.on_update = OnUpdate::kFinish;
  Bench bench(small_model(), options);
  ASSERT_EQ(bench.call("PUT", kWeights, random_tensors(small_model(), 2).file()).status, 200);
  auto opening = std::async(std::launch::async, [&] {
    return bench.call("POST", "/weft/v1/uploads", skeleton(bench.first())).status;
  });

  EXPECT_EQ(bench.call("PUT", kWeights, bench.first().file()).status, 503);
  EXPECT_EQ(bench.state(), "idle");
  bench.target().end_sequences();

  EXPECT_EQ(opening.get(), 201);
}

TEST(OnUpdate, AThirdVersionIsRefusedOrMakesSequencesGoOnWhereTheServerSaysSo) {
  ReceiverOptions options;
  options.on_update = OnUpdate::kFinish;
  options.on_third = OnThird::kRefuse;
  Bench refusing(small_model(), options);
  ASSERT_EQ(refusing.call("PUT", kWeights, random_tensors(small_model(), 2).file()).status, 200);
  const auto refused = refusing.call("POST", "/weft/v1/uploads", skeleton(refusing.first()));
  EXPECT_EQ(refused.status, 409);
  EXPECT_EQ(refused.headers.try_get("Retry-After"), "1");

  options.on_third = OnThird::kRecompute;
  Bench evicting(small_model(), options);
  ASSERT_EQ(evicting.call("PUT", kWeights, random_tensors(small_model(), 2).file()).status, 200);
  EXPECT_EQ(evicting.call("POST", "/weft/v1/uploads", skeleton(evicting.first())).status, 201);
}

// In patch mode: one set, written in place.
class PatchMode : public testing::Test {
 protected:
  static ReceiverOptions options(Verify verify = Verify::kBackground) {
    ReceiverOptions options;
    options.commit_mode = CommitMode::kPatch;
    options.max_patch_bytes = 1 << 20;
    options.verify = verify;
    return options;
  }
  std::string open(Bench& bench, const Tensors& next) {
    return open_upload(bench, with(skeleton(next), base_member(bench)));
  }
};

TEST_F(PatchMode, AppliesWhatChangedAndServesIt) {
  Bench bench(large_model(), options());
  auto base = bench.first();
  for (unsigned step = 1; step <= 3; ++step) {
    const auto next = changed(base, 500 * step);
    const auto upload = open(bench, next);
    const auto put = bench.call("PUT", upload + "/blocks", sparse_body(base, next));
    ASSERT_EQ(put.status, 200) << put.body;
    EXPECT_EQ(bench.served(), base.bytes());
    ASSERT_EQ(seal_and_commit(bench, upload, R"({"label":"s"})").status, 200);
    EXPECT_EQ(bench.served(), next.bytes());
    base = next;
  }
  EXPECT_EQ(bench.target().commits(), 3u);
  // The id is that of the content: a receiver with two sets agrees.
  Bench other(large_model());
  ASSERT_EQ(other.call("PUT", kWeights, base.file()).status, 200);
  EXPECT_EQ(other.current().id, bench.current().id);
}

TEST_F(PatchMode, TheSealSaysHowLongTheCommitWillTake) {
  Bench bench(large_model(), options());
  const auto base = bench.first();
  const auto next = changed(base, 500);
  const auto upload = open(bench, next);
  ASSERT_EQ(bench.call("PUT", upload + "/blocks", sparse_body(base, next)).status, 200);
  EXPECT_FALSE(bench.receiver().predicted_stall_us());

  const auto sealed = bench.call("POST", upload + "/seal");

  const auto stall_us = bench.receiver().predicted_stall_us();
  ASSERT_TRUE(stall_us);
  EXPECT_GT(*stall_us, 0u);
  EXPECT_NE(sealed.body.find(fmt::format("\"predicted_stall_us\":{}", *stall_us)),
            std::string::npos)
      << sealed.body;
  ASSERT_EQ(bench.call("POST", upload + "/commit").status, 200);
  EXPECT_FALSE(bench.receiver().predicted_stall_us());
}

TEST_F(PatchMode, FullUploadsAreTooLargeAtTheFirstCallWithTheNumbers) {
  Bench bench(small_model(), options());
  const auto next = random_tensors(small_model(), 2);
  for (const auto& answer : {bench.call("PUT", kWeights, next.file()),
                             bench.call("POST", "/weft/v1/uploads", skeleton(next))}) {
    EXPECT_EQ(answer.status, 413);
    EXPECT_NE(answer.body.find("1048576"), std::string::npos) << answer.body;
  }
  const auto upload = open(bench, next);
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", block_body(next, {{0, 0}})).status, 413);
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", block_body(bench.first(), {{0, 0}})).status, 200);
  EXPECT_EQ(bench.served(), bench.first().bytes());
}

TEST_F(PatchMode, FinishAndBytesAreRefusedWithTheReason) {
  Bench bench(small_model(), options());
  const auto base = bench.first();
  const auto next = changed(base);
  const auto upload = open(bench, next);
  ASSERT_EQ(bench.call("PUT", upload + "/blocks", sparse_body(base, next)).status, 200);

  const auto answer = seal_and_commit(bench, upload, R"({"on_update":"finish"})");

  EXPECT_EQ(answer.status, 409);
  EXPECT_NE(answer.body.find("second set"), std::string::npos) << answer.body;
  EXPECT_EQ(bench.state(), "staged");
  EXPECT_EQ(bench.receiver().source().open(bench.current().id).error().code(),
            ErrorCode::kConflict);
  EXPECT_EQ(bench.call("POST", upload + "/commit").status, 200);
}

// A patch whose own digest is right and whose result is not what its sender says.
std::string lying_body(const Tensors& base, const Tensors& next, const Tensors& said) {
  std::string body;
  for (std::size_t i = 0; i < next.data.size(); ++i) {
    if (next.data[i].empty()) continue;
    const std::span<const std::byte> bytes(said.data[i]);
    body += frame(i, 0, Encoding::kSparse,
                  encode_sparse(base.data[i], next.data[i], dtype_size_bytes(next.specs[i].dtype)),
                  block_digest(bytes.size(), 0, bytes));
  }
  return body;
}

TEST_F(PatchMode, AWrongResultIsTakenBackAndCounted) {
  Bench bench(small_model(), options());
  const auto base = bench.first();
  const auto before = bench.current();
  const auto upload = open(bench, changed(base));
  ASSERT_EQ(bench
                .call("PUT", upload + "/blocks",
                      lying_body(base, changed(base), random_tensors(small_model(), 9)))
                .status,
            200);
  ASSERT_EQ(seal_and_commit(bench, upload).status, 200);

  while (bench.target().commits() < 2) std::this_thread::yield();
  EXPECT_TRUE(bench.target().last_was_rollback());

  EXPECT_EQ(bench.served(), base.bytes());
  EXPECT_EQ(bench.current(), before);
  EXPECT_EQ(bench.receiver().metrics().corrupt, 1u);
  const auto again = open(bench, changed(base));
  ASSERT_EQ(bench.call("PUT", again + "/blocks", sparse_body(base, changed(base))).status, 200);
  EXPECT_EQ(seal_and_commit(bench, again).status, 200);
  EXPECT_EQ(bench.served(), changed(base).bytes());
}

TEST_F(PatchMode, WithFullVerificationAWrongResultIsRefusedBeforeTheCommit) {
  Bench bench(small_model(), options(Verify::kFull));
  const auto base = bench.first();
  const auto upload = open(bench, changed(base));

  const auto answer = bench.call("PUT", upload + "/blocks",
                                 lying_body(base, changed(base), random_tensors(small_model(), 9)));

  EXPECT_EQ(answer.status, 422) << answer.body;
  EXPECT_EQ(bench.served(), base.bytes());
}

TEST_F(PatchMode, ChecksumsAndCommitsDoNotMeet) {
  Bench bench(small_model(), options());
  const auto base = bench.first();
  const auto next = changed(base);
  const auto upload = open(bench, next);
  ASSERT_EQ(bench.call("PUT", upload + "/blocks", sparse_body(base, next)).status, 200);
  bench.target().hold_commits();
  ASSERT_EQ(bench.call("POST", upload + "/seal").status, 200);
  auto commit =
      std::async(std::launch::async, [&] { return bench.call("POST", upload + "/commit").status; });
  while (bench.state() != "committing") std::this_thread::yield();
  std::promise<void> summed;
  bench.receiver().checksums([&](const auto&) { summed.set_value(); });
  auto future = summed.get_future();

  bench.target().release_commits();

  EXPECT_EQ(commit.get(), 200);
  EXPECT_EQ(future.wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

class StateDirectory : public testing::Test {
 protected:
  std::shared_ptr<StateDir> open() { return StateDir::blocking_open(state_).value(); }
  Error refusal() { return StateDir::blocking_open(state_).error(); }
  static void save(StateDir& state, const std::string& id, const std::string& label) {
    const auto tensors = random_tensors(small_model(), 1);
    ASSERT_TRUE(state.blocking_save(tensors.views(), {}, id, label));
  }
  // What a receiver that keeps its state here commits, calls "step-5", and stops with; the id.
  std::string commit(const Tensors& tensors) {
    ReceiverOptions options = options_with_files();
    options.state = open();
    Bench bench(small_model(), std::move(options));
    EXPECT_EQ(bench.call("PUT", kWeights, tensors.file()).status, 200);
    EXPECT_TRUE(bench.receiver().set_label("step-5"));
    return bench.current().id;
  }
  // Starts a receiver with this state that serves zeros.
  Result<void> serve_zeros() {
    ReceiverOptions options = options_with_files();
    options.state = open();
    const auto layout =
        std::make_shared<const WeightLayout>(WeightLayout::make(small_model()).value());
    const auto zeros = WeightSet::blocking_allocate(layout).value();
    for (std::size_t i = 0; i < layout->tensors().size(); ++i)
      std::ranges::fill(zeros->tensor(i), std::byte{0});
    FakeTarget target(zeros, {"", "default", false});
    WEFT_TRY(const auto receiver, Receiver::blocking_create(zeros, target, options));
    return {};
  }

  const TemporaryDir directory_;
  const std::filesystem::path state_ = directory_ / "state";
  const std::string one_ = fmt::format("blake3:{:064}", 1), two_ = fmt::format("blake3:{:064}", 2);
};

TEST_F(StateDirectory, HoldsWhatWasCommittedAndNamedRightBeforeTheStop) {
  const auto next = random_tensors(small_model(), 5);
  const std::string id = commit(next);

  const auto state = open();
  const auto saved = state->saved();

  ASSERT_TRUE(saved);
  EXPECT_EQ(saved->id, id);
  EXPECT_EQ(saved->label, "step-5");
  EXPECT_EQ(blocking_read_file(saved->folder / "tokenizer.json").value(), "old");
  const std::string file = blocking_read_file(saved->folder / "model.safetensors").value();
  EXPECT_EQ(file.substr(file.size() - 256), next.file().substr(next.file().size() - 256));
}

TEST_F(StateDirectory, NamesAConvertedVersionByItsBytes) {
  auto sent = small_model();
  for (TensorSpec& spec : sent) spec.dtype = DType::kF32;

  const std::string id = commit(filled_tensors(sent, std::byte{0}));

  EXPECT_NE(open()->saved()->id, id);
  EXPECT_TRUE(serve_zeros());
}

TEST_F(StateDirectory, MovesToTheNewestAndDropsTheOthers) {
  auto state = open();
  EXPECT_FALSE(state->saved());
  std::filesystem::create_directory(state_ / "mine");
  save(*state, one_, "one");
  save(*state, two_, "two");
  save(*state, two_, "again");
  state.reset();

  EXPECT_EQ(open()->saved()->label, "again");
  EXPECT_FALSE(std::filesystem::exists(state_ / one_.substr(7)));
  EXPECT_TRUE(std::filesystem::exists(state_ / "mine"));
}

TEST_F(StateDirectory, IsForOneProcess) {
  const auto mine = open();

  EXPECT_EQ(refusal().code(), ErrorCode::kConflict);
}

TEST_F(StateDirectory, ThatCannotBeReadSaysHowToGoOn) {
  save(*open(), one_, "one");
  const auto record = state_ / "current/weft-version.json";
  const auto expect_refused = [&](const std::string& what) {
    const std::string message = refusal().message();
    EXPECT_NE(message.find(what), std::string::npos) << message;
    const auto remedy =
        "; to start as if nothing had been saved, remove " + (state_ / "current").string();
    EXPECT_TRUE(message.ends_with(remedy)) << message;
  };
  for (const char* const text : {"", "{", "[]", R"({"id":"x"})", R"({"id":1,"label":""})",
                                 "{\"id\":\"x\",\"label\":\"\xff\"}"}) {
    ASSERT_TRUE(blocking_write_file(record, text));
    expect_refused("weft-version.json: ");
    EXPECT_EQ(refusal().code(), ErrorCode::kCorrupt) << text;
  }
  std::filesystem::remove(record);
  expect_refused("weft-version.json: ");
  std::filesystem::remove_all(std::filesystem::canonical(state_ / "current"));
  expect_refused("current: cannot follow");

  std::filesystem::remove(state_ / "current");

  EXPECT_FALSE(open()->saved());
}

TEST_F(StateDirectory, IsServedAsNothingElse) {
  const std::string id = commit(random_tensors(small_model(), 5));

  const auto refused = serve_zeros();

  EXPECT_EQ(refused.error().code(), ErrorCode::kCorrupt);
  const std::string& message = refused.error().message();
  EXPECT_NE(message.find("weft-version.json says " + id), std::string::npos) << message;
  EXPECT_NE(message.find("damaged: it is blake3:"), std::string::npos) << message;
}

}  // namespace
}  // namespace weft
