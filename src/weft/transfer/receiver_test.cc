// The receiver over raw HTTP: bodies cut at many places, wrong bytes, wrong order, several owners.

#include "weft/transfer/receiver.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <set>
#include <thread>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "weft/base/file.h"
#include "weft/digest/digest.h"
#include "weft/testing/temporary_dir.h"
#include "weft/transfer/transfer_fixture.h"

namespace weft {
namespace {

using namespace transfer_test;

constexpr const char* kWeights = "/weft/v1/weights";

// All blocks of the small model: each of its tensors but the empty one has one.
std::vector<std::pair<std::size_t, std::uint64_t>> all_blocks(const Tensors& tensors) {
  std::vector<std::pair<std::size_t, std::uint64_t>> blocks;
  for (std::size_t i = 0; i < tensors.data.size(); ++i) {
    for (std::uint64_t block = 0; block < block_count(tensors.data[i].size()); ++block)
      blocks.push_back({i, block});
  }
  return blocks;
}

std::string open_upload(Bench& bench, const Tensors& tensors, const std::string& session = "",
                        bool with_digests = false) {
  const auto answer =
      bench.call("POST", "/weft/v1/uploads", skeleton(tensors, with_digests), session);
  EXPECT_EQ(answer.status, 201) << answer.body;
  return "/weft/v1/uploads/" + member(answer.body, "upload");
}

// What must hold after a push that went wrong: nothing moved, and a right one works.
void expect_unmoved(Bench& bench, const NamedBytes& before, const VersionName& version) {
  EXPECT_EQ(bench.served(), before);
  EXPECT_EQ(bench.current(), version);
  EXPECT_EQ(bench.target().commits(), 0u);
  EXPECT_EQ(bench.state(), "idle");
  const auto next = random_tensors(bench.model(), 99);
  EXPECT_EQ(bench.call("PUT", kWeights, next.file()).status, 200);
  EXPECT_EQ(bench.served(), next.bytes());
}

// Sends the first `size` bytes of a request and nothing more, and waits until the server has seen
// that.
void cut_at(Bench& bench, const std::string& request, std::size_t size) {
  RawConnection connection(bench.port());
  EXPECT_TRUE(connection.send(std::string_view(request).substr(0, size)));
  connection.cut();
}

void cut_everywhere(Bench& bench, const std::string& request, std::size_t step) {
  const auto before = bench.served();
  for (std::size_t size = 1; size < request.size(); size += step) {
    cut_at(bench, request, size);
    ASSERT_EQ(bench.served(), before) << "cut at byte " << size;
  }
}

TEST(Weights, ABodyCutAnywhereChangesNothing) {
  Bench bench(small_model());
  const auto before = bench.served();
  const auto version = bench.current();
  const std::string request =
      wire_request("PUT", kWeights, random_tensors(bench.model(), 2).file());

  cut_everywhere(bench, request, 61);

  expect_unmoved(bench, before, version);
}

TEST(Weights, AChunkedBodyCutAnywhereChangesNothing) {
  Bench bench(small_model());
  const auto before = bench.served();
  const auto version = bench.current();
  const std::string request =
      wire_request("POST", kWeights, random_tensors(bench.model(), 2).file(), "", 100);

  cut_everywhere(bench, request, 67);

  expect_unmoved(bench, before, version);
}

TEST(Weights, CutsNearTheBordersOfBlocksChangeNothing) {
  Bench bench(large_model());
  const auto before = bench.served();
  const auto version = bench.current();
  const std::string request =
      wire_request("PUT", kWeights, random_tensors(bench.model(), 2).file());
  const std::size_t first_block = request.size() - (2 * (kBlockBytes / 2 + 3) * 2);

  for (const std::size_t border : {first_block, first_block + kBlockBytes, request.size()}) {
    for (const std::size_t size : {border - 1, border, border + 1}) {
      if (size >= request.size()) continue;
      cut_at(bench, request, size);
      ASSERT_EQ(bench.served(), before) << "cut at byte " << size;
    }
  }

  expect_unmoved(bench, before, version);
}

TEST(Weights, ChunkedBodiesOfAnySizeAreTheSameUpdate) {
  Bench bench(small_model());
  const auto next = random_tensors(bench.model(), 3);

  for (const std::size_t chunk : {1u, 7u, 4096u, 1u << 20}) {
    RawConnection connection(bench.port());
    ASSERT_TRUE(connection.send(wire_request("PUT", kWeights, next.file(), "", chunk)));
    EXPECT_EQ(connection.read_status(), 200);
  }

  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(Weights, AFileThatEndsEarlyOrGoesOnIsRefused) {
  Bench bench(small_model());
  const auto before = bench.served();
  const auto version = bench.current();
  const std::string file = random_tensors(bench.model(), 3).file();

  for (const std::string& body :
       {file.substr(0, file.size() - 1), file + "x", file.substr(0, 5), std::string()}) {
    EXPECT_EQ(bench.call("PUT", kWeights, body).status, 422) << body.size();
    RawConnection chunked(bench.port());
    ASSERT_TRUE(chunked.send(wire_request("PUT", kWeights, body, "", 512)));
    EXPECT_EQ(chunked.read_status(), 422) << body.size();
  }

  expect_unmoved(bench, before, version);
  EXPECT_EQ(bench.receiver().metrics().failed, 8u);
}

TEST(Weights, EveryMalformedFileIsRefused) {
  const auto folder = binary_dir() / "fixtures/bad";
  ASSERT_TRUE(std::filesystem::is_directory(folder)) << "made by the CTest fixture bad_safetensors";
  Bench bench(small_model());
  const auto before = bench.served();
  const auto version = bench.current();
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto answer = bench.call("PUT", kWeights, blocking_read_file(entry.path()).value());
    // The good ones among them are not this model's weights.
    const bool is_good = entry.path().filename().string().starts_with("ok_");
    EXPECT_EQ(answer.status, is_good ? 400 : 422) << entry.path() << answer.body;
    ++files;
  }
  EXPECT_GT(files, 40u);

  expect_unmoved(bench, before, version);
}

TEST(Weights, WrongShapesAreNamedBeforeAnythingIsWritten) {
  Bench bench(small_model());
  const auto before = bench.served();
  const auto version = bench.current();
  auto next = random_tensors(bench.model(), 4);
  next.specs[next.find("lm_head.weight")].shape = {16, 32};
  next.specs[next.find("model.norm.weight")].shape = {1, 16};

  const auto answer = bench.call("PUT", kWeights, next.file());

  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("lm_head.weight is [16, 32], expected [32, 16]"), std::string::npos)
      << answer.body;
  EXPECT_NE(answer.body.find("model.norm.weight is [1, 16], expected [16]"), std::string::npos)
      << answer.body;
  expect_unmoved(bench, before, version);
}

TEST(Weights, ATiedHeadMustEqualTheEmbeddingAndIsDropped) {
  auto tied_model = small_model();
  std::erase_if(tied_model, [](const TensorSpec& spec) { return spec.name == "lm_head.weight"; });
  ReceiverOptions options;
  options.tied_embeddings = true;
  Bench bench(tied_model, options);
  const auto before = bench.served();
  auto next = random_tensors(small_model(), 5);
  Bytes& head = next.data[next.find("lm_head.weight")];

  EXPECT_EQ(bench.call("PUT", kWeights, next.file()).status, 400);
  EXPECT_EQ(bench.served(), before);
  EXPECT_EQ(bench.state(), "idle");
  head = next.data[next.find("model.embed_tokens.weight")];
  const auto with_head = bench.call("PUT", kWeights, next.file());
  const auto without_head = bench.call("PUT", kWeights, random_tensors(tied_model, 5).file());

  EXPECT_EQ(with_head.status, 200) << with_head.body;
  EXPECT_EQ(member(with_head.body, "id"), member(without_head.body, "id"));
}

TEST(Weights, AreRefusedWhileAnotherOwnerHoldsTheUpdate) {
  Bench bench(small_model());
  const auto next = random_tensors(bench.model(), 6);
  ASSERT_TRUE(blocking_result([&](auto done) { bench.receiver().start_update("a", done); }));

  const auto answer = bench.call("PUT", kWeights, next.file());

  EXPECT_EQ(answer.status, 409);
  EXPECT_NE(answer.body.find("`a`"), std::string::npos) << answer.body;
  EXPECT_EQ(bench.call("PUT", kWeights, next.file(), "a").status, 200);
}

TEST(Weights, AreRefusedBeforeTheirBytesWhenTheQueryIsWrong) {
  Bench bench(small_model());
  const std::string long_label(16'385, 'x');

  for (const std::string& query :
       {std::string("on_update=maybe"), std::string("on_update="), std::string("on_update=ABORT"),
        "label=" + long_label, std::string("label=%ff"), std::string("commit=yes")}) {
    RawConnection connection(bench.port());
    connection.send("PUT " + std::string(kWeights) + "?" + query +
                    " HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
    EXPECT_EQ(connection.read_status(), 400) << query.substr(0, 20);
  }
  EXPECT_EQ(bench.state(), "idle");
}

TEST(Blocks, ABodyCutAnywhereLosesOnlyTheBlockInFlight) {
  Bench bench(small_model());
  const auto before = bench.served();
  const auto next = random_tensors(bench.model(), 2);
  const auto upload = open_upload(bench, next, "t");
  const std::string request =
      wire_request("PUT", upload + "/blocks", block_body(next, all_blocks(next)), "t");

  for (std::size_t size = 1; size < request.size(); size += 53) {
    cut_at(bench, request, size);
    ASSERT_EQ(bench.served(), before);
  }
  const auto rest = bench.call("PUT", upload + "/blocks", block_body(next, all_blocks(next)), "t");
  EXPECT_EQ(rest.body, R"({"verified":1,"repeated":4,"busy":0})");

  EXPECT_EQ(bench.call("POST", upload + "/seal", "", "t").status, 200);
  EXPECT_EQ(bench.served(), before);
  EXPECT_EQ(bench.call("POST", upload + "/commit", R"({"label":"x"})", "t").status, 200);
  EXPECT_EQ(bench.served(), next.bytes());
}

TEST(Blocks, OneTensorARequestLastFirstIsTheSameVersion) {
  Bench bench(large_model());
  const auto next = random_tensors(bench.model(), 3);
  const auto upload = open_upload(bench, next);
  auto blocks = all_blocks(next);
  std::ranges::reverse(blocks);

  for (const auto& block : blocks) {
    EXPECT_EQ(bench.call("PUT", upload + "/blocks", block_body(next, {block})).status, 200);
  }
  const auto sealed = bench.call("POST", upload + "/seal");
  ASSERT_EQ(bench.call("POST", upload + "/commit").status, 200);

  EXPECT_EQ(bench.served(), next.bytes());
  const auto manifest =
      bench.call("GET", "/weft/v1/versions/" + member(sealed.body, "id") + "/manifest");
  EXPECT_EQ(digest_text(digest_of(std::as_bytes(std::span(manifest.body)))),
            member(sealed.body, "id"));
}

TEST(Blocks, WrongBytesAreNamedAndTheBlockIsOpenAgain) {
  Bench bench(small_model());
  const auto next = random_tensors(bench.model(), 4);
  const auto upload = open_upload(bench, next);
  // Tensors of one shape whose bytes were swapped: k's digest over v's bytes.
  auto swapped = block_body(next, {{next.find("model.k_proj.weight"), 0}});
  const Bytes& v = next.data[next.find("model.v_proj.weight")];
  for (std::size_t i = 0; i < v.size(); ++i) swapped[48 + i] = std::to_integer<char>(v[i]);

  const auto answer = bench.call("PUT", upload + "/blocks", swapped);

  EXPECT_EQ(answer.status, 422);
  EXPECT_NE(answer.body.find("model.k_proj.weight, block 0"), std::string::npos) << answer.body;
  EXPECT_EQ(bench.call("POST", upload + "/seal").status, 409);
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", block_body(next, all_blocks(next))).status, 200);
  EXPECT_EQ(bench.call("POST", upload + "/seal").status, 200);
}

TEST(Blocks, MustMatchTheDigestsOfTheSkeleton) {
  Bench bench(small_model());
  const auto announced = random_tensors(bench.model(), 4);
  const auto other = random_tensors(bench.model(), 5);
  const auto upload = open_upload(bench, announced, "", true);

  EXPECT_EQ(bench.call("PUT", upload + "/blocks", block_body(other, {{0, 0}})).status, 422);
}

TEST(Blocks, OutsideTheGridAreRefused) {
  Bench bench(small_model());
  const auto next = random_tensors(bench.model(), 6);
  const auto upload = open_upload(bench, next);
  const std::string good = block_body(next, {{0, 0}});

  for (const std::size_t field : {0u, 4u, 8u, 12u}) {
    std::string bad = good;
    bad[field + 3] = 0x7f;
    const auto answer = bench.call("PUT", upload + "/blocks", bad);
    EXPECT_EQ(answer.status, 400) << field << answer.body;
  }
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", good.substr(0, 60)).status, 422);
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", good).body,
            R"({"verified":1,"repeated":0,"busy":0})");
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", good).body,
            R"({"verified":0,"repeated":1,"busy":0})");
}

TEST(Blocks, OfAnUploadThatIsOverAreRefusedAndItsMemoryWaitsForThem) {
  Bench bench(small_model());
  const auto next = random_tensors(bench.model(), 7);
  const auto other = random_tensors(bench.model(), 8);
  const auto upload = open_upload(bench, next, "a");
  const std::string late =
      wire_request("PUT", upload + "/blocks", block_body(next, all_blocks(next)), "a");
  auto writer = std::make_unique<RawConnection>(bench.port());
  ASSERT_TRUE(writer->send(std::string_view(late).substr(0, late.size() - 100)));
  while (bench.call("GET", upload, "", "a").body.find(R"("missing":[[5,0,1]])") ==
         std::string::npos) {
    std::this_thread::yield();
  }

  EXPECT_EQ(bench.call("DELETE", upload, "", "a").status, 200);
  EXPECT_EQ(bench.call("DELETE", upload, "", "a").status, 200);
  EXPECT_EQ(bench.call("POST", "/weft/v1/uploads", skeleton(other), "b").status, 503);
  EXPECT_EQ(writer->read_status(), 0) << "the writer that kept the memory was not cut off";
  while (bench.call("POST", "/weft/v1/uploads", skeleton(other), "b").status == 503) {
    std::this_thread::yield();
  }

  const auto second = open_upload(bench, other, "b");
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", block_body(next, {{0, 0}}), "a").status, 409);
  EXPECT_EQ(bench.call("PUT", second + "/blocks", block_body(other, all_blocks(other)), "b").status,
            200);
  EXPECT_EQ(bench.call("POST", second + "/seal", "", "b").status, 200);
  EXPECT_EQ(bench.call("POST", second + "/commit", "", "b").status, 200);
  EXPECT_EQ(bench.served(), other.bytes());
}

TEST(Uploads, OfOneSkeletonAreOneAndAnotherMustReplaceIt) {
  Bench bench(small_model());
  const auto next = random_tensors(bench.model(), 2);
  const auto upload = open_upload(bench, next, "t");
  ASSERT_EQ(bench.call("PUT", upload + "/blocks", block_body(next, {{0, 0}}), "t").status, 200);

  EXPECT_EQ(open_upload(bench, next, "t"), upload);
  std::string replacing = skeleton(next, true);
  EXPECT_EQ(bench.call("POST", "/weft/v1/uploads", replacing, "t").status, 409);
  replacing.insert(1, R"("replace":true,)");
  EXPECT_EQ(bench.call("POST", "/weft/v1/uploads", replacing, "t").status, 201);
  EXPECT_EQ(bench.call("GET", upload, "", "t").status, 409);
}

TEST(Uploads, OfABodyWhoseHeaderHasNotComeAnswerSo) {
  Bench bench(small_model());
  const std::string request =
      wire_request("PUT", kWeights, random_tensors(bench.model(), 2).file());
  RawConnection connection(bench.port());
  ASSERT_TRUE(connection.send(std::string_view(request).substr(0, 100)));
  while (bench.state() != "staging") std::this_thread::yield();
  const auto upload =
      "/weft/v1/uploads/" + member(bench.call("GET", "/weft/v1/status").body, "upload");

  EXPECT_EQ(bench.call("GET", upload).status, 409);
  EXPECT_EQ(bench.call("POST", upload + "/seal").status, 409);
  EXPECT_EQ(bench.call("POST", upload + "/commit").status, 409);
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", "x").status, 409);
  ASSERT_TRUE(connection.send(std::string_view(request).substr(100)));
  EXPECT_EQ(connection.read_status(), 200);
}

TEST(Uploads, BadSkeletonsAreRefusedAndNothingChanges) {
  Bench bench(small_model());
  for (const char* body :
       {"", "{", "[]", "{}", R"({"tensors":1})", R"({"tensors":[1]})", R"({"tensors":[]})",
        R"({"tensors":[{"name":"a","dtype":"","shape":[1]}]})",
        R"({"tensors":[{"name":"a","dtype":5,"shape":[1]}]})",
        R"({"tensors":[{"name":"a","dtype":"F32","shape":[-1]}]})",
        R"({"tensors":[{"name":"a","dtype":"F32","shape":[1.5]}]})",
        R"({"tensors":[{"name":"a","dtype":"F32","shape":[1],"blocks":["sha256:00"]}]})",
        R"({"tensors":[],"replace":"yes"})"}) {
    const auto answer = bench.call("POST", "/weft/v1/uploads", body);
    EXPECT_EQ(answer.status, 400) << body << answer.body;
  }
  EXPECT_EQ(bench.state(), "idle");
  EXPECT_EQ(bench.call("GET", "/weft/v1/uploads/none-1").status, 404);
}

TEST(Uploads, ASkeletonThatCannotBeTakenClosesWhatItsOwnerHasOpen) {
  Bench bench(small_model());
  const auto before = bench.current();
  const auto start = [&] {
    return blocking_result([&](auto done) { bench.receiver().start_update("t", done); });
  };
  const auto finish = [&] {
    return blocking_result([&](auto done) { bench.receiver().finish_update("t", "late", done); });
  };
  auto next = random_tensors(bench.model(), 2);
  next.specs[0].name = "misspelt";
  for (const std::string& body : {std::string("{}"), skeleton(next)}) {
    ASSERT_TRUE(start());
    EXPECT_EQ(bench.call("POST", "/weft/v1/uploads", body, "another").status, 400);
    EXPECT_EQ(bench.state(), "open");
    EXPECT_EQ(bench.call("POST", "/weft/v1/uploads", body, "t").status, 400);
    EXPECT_EQ(finish().error().code(), ErrorCode::kConflict);
  }
  EXPECT_EQ(bench.current(), before);
}

TEST(Uploads, ACommitThatIsRepeatedHappensOnce) {
  Bench bench(small_model());
  const auto next = random_tensors(bench.model(), 3);
  const auto upload = open_upload(bench, next);
  ASSERT_EQ(bench.call("PUT", upload + "/blocks", block_body(next, all_blocks(next))).status, 200);
  EXPECT_EQ(bench.call("POST", upload + "/commit").status, 409);  // not sealed
  ASSERT_EQ(bench.call("POST", upload + "/seal").status, 200);
  bench.target().hold_commits();
  const auto commit = [&] { return bench.call("POST", upload + "/commit", R"({"label":"x"})"); };
  auto first = std::async(std::launch::async, commit);
  auto second = std::async(std::launch::async, commit);
  while (bench.state() != "committing") std::this_thread::yield();
  EXPECT_EQ(bench.call("DELETE", upload).status, 409);
  EXPECT_EQ(bench.call("PUT", kWeights, next.file()).status, 409);

  bench.target().release_commits();

  const auto answer = first.get();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(second.get().body, answer.body);
  EXPECT_EQ(commit().body, answer.body);
  EXPECT_EQ(bench.call("POST", upload + "/seal").status, 200);
  EXPECT_EQ(bench.target().commits(), 1u);
}

TEST(Uploads, AfterTheLeaseTheUpdateIsGone) {
  ReceiverOptions options;
  options.lease = std::chrono::seconds(1);
  Bench bench(small_model(), options);
  const auto next = random_tensors(bench.model(), 4);
  const auto upload = open_upload(bench, next, "dead");
  EXPECT_EQ(bench.call("POST", "/weft/v1/uploads", skeleton(next), "new").status, 409);

  while (bench.state() != "idle") std::this_thread::yield();

  const auto second = open_upload(bench, next, "new");
  EXPECT_EQ(bench.call("PUT", upload + "/blocks", block_body(next, {{0, 0}}), "dead").status, 409);
  EXPECT_NE(second, upload);
}

TEST(Control, OneOfTwoOwnersWins) {
  Bench bench(small_model());
  for (int round = 0; round < 100; ++round) {
    std::promise<void> go;
    auto ready = go.get_future().share();
    const auto start = [&](const char* owner) {
      ready.wait();
      return blocking_result([&](auto done) { bench.receiver().start_update(owner, done); })
          .has_value();
    };
    auto a = std::async(std::launch::async, start, "a");
    auto b = std::async(std::launch::async, start, "b");
    go.set_value();
    const bool a_won = a.get();
    ASSERT_NE(a_won, b.get());
    const auto finish = [&](const char* owner) {
      return blocking_result(
          [&](auto done) { bench.receiver().finish_update(owner, std::nullopt, done); });
    };
    EXPECT_EQ(finish(a_won ? "b" : "a").error().code(), ErrorCode::kConflict);
    EXPECT_TRUE(finish(a_won ? "a" : "b"));
  }
}

class PathUpdate : public testing::Test {
 protected:
  Result<void> start() {
    return blocking_result([&](auto done) { bench_.receiver().start_update("t", done); });
  }
  Result<void> update(const std::filesystem::path& path) {
    return blocking_result([&](auto done) { bench_.receiver().update("t", path.string(), done); });
  }
  Result<void> finish(std::optional<std::string> label) {
    return blocking_result([&](auto done) { bench_.receiver().finish_update("t", label, done); });
  }

  Bench bench_{small_model()};
  TemporaryDir directory_;
};

TEST_F(PathUpdate, StagesAFileAndFinishServesIt) {
  const auto before = bench_.served();
  const auto next = random_tensors(bench_.model(), 2);
  ASSERT_TRUE(blocking_write_file(directory_ / "model.safetensors", next.file()));
  EXPECT_EQ(update(directory_.path()).error().code(), ErrorCode::kConflict);  // before start
  ASSERT_TRUE(start());

  EXPECT_TRUE(update(directory_.path()));
  EXPECT_TRUE(update(directory_ / "model.safetensors"));
  EXPECT_EQ(bench_.served(), before);
  EXPECT_TRUE(finish("step-1"));
  EXPECT_TRUE(finish("step-1"));

  EXPECT_EQ(bench_.served(), next.bytes());
  EXPECT_EQ(bench_.target().commits(), 1u);
}

TEST_F(PathUpdate, ConvertsAndMarks) {
  auto next = random_tensors(bench_.model(), 3);
  const std::size_t norm = next.find("model.norm.weight");
  next.specs[norm].dtype = DType::kBF16;
  next.data[norm].assign(32, std::byte{0x3f});
  ASSERT_TRUE(blocking_write_file(directory_ / "model.safetensors", next.file()));
  ASSERT_TRUE(start());

  ASSERT_TRUE(update(directory_.path()));
  ASSERT_TRUE(finish(std::nullopt));

  EXPECT_TRUE(bench_.current().converted);
  const auto served = bench_.served()["model.norm.weight"];
  EXPECT_EQ(std::to_integer<int>(served[0]), 0);
  EXPECT_EQ(std::to_integer<int>(served[3]), 0x3f);
}

TEST_F(PathUpdate, ThatFailsClosesTheUpdate) {
  const auto before = bench_.served();
  auto next = random_tensors(bench_.model(), 4);
  next.specs[0].name = "misspelt";
  ASSERT_TRUE(blocking_write_file(directory_ / "model.safetensors", next.file()));
  const std::string file = random_tensors(bench_.model(), 4).file();
  ASSERT_TRUE(blocking_write_file(directory_ / "cut.safetensors", file.substr(0, file.size() - 7)));

  for (const char* name : {"model.safetensors", "cut.safetensors", "none.safetensors"}) {
    ASSERT_TRUE(start()) << name;
    const auto updated = update(directory_ / name);
    EXPECT_FALSE(updated) << name;
    EXPECT_NE(updated.error().message().find(name), std::string::npos) << updated.error().message();
    EXPECT_EQ(finish("bad").error().code(), ErrorCode::kConflict);
  }

  EXPECT_EQ(bench_.served(), before);
  EXPECT_EQ(bench_.current().label, "default");
}

TEST(Control, FinishWithNothingStagedMovesOnlyTheLabel) {
  Bench bench(small_model());
  const auto id = bench.current().id;
  ASSERT_TRUE(blocking_result([&](auto done) { bench.receiver().start_update("t", done); }));
  ASSERT_TRUE(
      blocking_result([&](auto done) { bench.receiver().update("t", std::nullopt, done); }));

  ASSERT_TRUE(
      blocking_result([&](auto done) { bench.receiver().finish_update("t", "step-3", done); }));

  EXPECT_EQ(bench.current(), (VersionName{id, "step-3", false}));
  EXPECT_EQ(bench.target().commits(), 0u);
  EXPECT_TRUE(bench.receiver().set_label(""));
  EXPECT_EQ(bench.current().label, "");
  EXPECT_FALSE(bench.receiver().set_label(std::string(20'000, 'x')));
}

TEST(Control, ChecksumsAreSha256OfWhatIsServed) {
  Bench bench(small_model());
  std::promise<std::vector<std::pair<std::string, std::string>>> promise;
  bench.receiver().checksums([&](auto sums) { promise.set_value(std::move(sums)); });

  const auto sums = promise.get_future().get();

  EXPECT_EQ(sums.size(), bench.model().size());
  // Of no bytes: FIPS 180-4's empty message.
  EXPECT_EQ(
      sums[2],
      std::pair(std::string("dp0:pp0:pcp0:tp0:model.empty"),
                std::string("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")));
}

TEST(Versions, TheFirstOneHasAnIdFromItsContent) {
  Bench bench(small_model());

  const auto current = bench.call("GET", "/weft/v1/versions/current");

  EXPECT_EQ(member(current.body, "id"), bench.current().id);
  EXPECT_TRUE(bench.current().id.starts_with("blake3:"));
  EXPECT_EQ(bench.call("GET", "/weft/v1/versions/blake3:00/manifest").status, 404);
  ASSERT_EQ(bench.call("PUT", kWeights, random_tensors(bench.model(), 1).file()).status, 200);
  EXPECT_EQ(bench.current().id, member(current.body, "id"));
}

}  // namespace
}  // namespace weft
