// libweft as a C program sees it: through weft.h alone, against servers of its own.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/testing/temporary_dir.h"
#include "weft/weft.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::StrEq;

constexpr std::uint64_t kShape[] = {3, 4};

struct Model {
  std::vector<float> first = std::vector<float>(12, 1.0f);
  std::vector<float> second = std::vector<float>(12, 2.0f);
  std::vector<weft_tensor> tensors = {
      {"a.weight", WEFT_F32, 2, kShape, first.data(), first.size() * sizeof(float)},
      {"b.weight", WEFT_F32, 2, kShape, second.data(), second.size() * sizeof(float)}};

  weft_source source() const {
    weft_source source = {};
    source.struct_size = sizeof(source);
    source.tensors = tensors.data();
    source.tensor_count = tensors.size();
    return source;
  }
};

class CInterface : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(weft_store_open((dir_ / "store").c_str(), nullptr, &store_), WEFT_OK)
        << weft_error_message();
    ASSERT_EQ(weft_client_open(weft_store_url(store_), nullptr, &client_), WEFT_OK);
  }
  void TearDown() override {
    weft_client_close(client_);
    weft_store_close(store_);
  }

  weft_publish_report publish(const weft_source& source, const char* label = nullptr) {
    weft_publish_options options = {};
    options.struct_size = sizeof(options);
    options.label = label;
    options.head = "main";
    weft_publish_report report = {};
    report.struct_size = sizeof(report);
    EXPECT_EQ(weft_publish(client_, &source, &options, &report), WEFT_OK) << weft_error_message();
    return report;
  }

  TemporaryDir dir_;
  weft_store* store_ = nullptr;
  weft_client* client_ = nullptr;
};

// Two floats of a tensor; NaN where it is not there.
float first_of(const weft_weights* weights, const char* name) {
  weft_tensor tensor;
  if (weft_weights_find(weights, name, &tensor) != WEFT_OK) return NAN;
  return *static_cast<const float*>(tensor.data);
}

TEST_F(CInterface, WhatIsPublishedIsPulled) {
  const Model model;
  const auto published = publish(model.source(), "step-1");
  EXPECT_THAT(published.id, StartsWith("blake3:"));
  EXPECT_EQ(published.total_bytes, 96u);

  weft_weights* weights = nullptr;
  ASSERT_EQ(weft_pull(client_, "step-1", nullptr, &weights, nullptr), WEFT_OK)
      << weft_error_message();
  EXPECT_THAT(weft_weights_id(weights), StrEq(published.id));
  ASSERT_EQ(weft_weights_tensor_count(weights), 2u);
  weft_tensor tensor;
  ASSERT_EQ(weft_weights_tensor(weights, 1, &tensor), WEFT_OK);
  EXPECT_THAT(tensor.name, StrEq("b.weight"));
  EXPECT_EQ(tensor.rank, 2u);
  EXPECT_EQ(tensor.shape[1], 4u);
  EXPECT_EQ(std::memcmp(tensor.data, model.second.data(), tensor.size_bytes), 0);
  weft_weights_release(weights);
}

TEST_F(CInterface, FilesTravelWithTheVersion) {
  const Model model;
  weft_source source = model.source();
  const weft_file config = {"config.json", "{}", 2};
  source.files = &config;
  source.file_count = 1;
  publish(source);

  weft_weights* weights = nullptr;
  ASSERT_EQ(weft_pull(client_, "#main", nullptr, &weights, nullptr), WEFT_OK);
  ASSERT_EQ(weft_weights_file_count(weights), 1u);
  weft_file file;
  ASSERT_EQ(weft_weights_file(weights, 0, &file), WEFT_OK);
  EXPECT_THAT(file.name, StrEq("config.json"));
  EXPECT_EQ(file.size_bytes, 2u);
  EXPECT_EQ(weft_weights_file(weights, 1, &file), WEFT_NOT_FOUND);
  weft_weights_release(weights);
}

TEST_F(CInterface, ACallbackMayReadTheTensors) {
  const Model model;
  weft_source source = model.source();
  source.read = [](void* context, size_t tensor, std::uint64_t offset_bytes, void* buffer,
                   size_t size_bytes, const void**) {
    const auto& read = *static_cast<const Model*>(context);
    const auto* data = static_cast<const std::byte*>(read.tensors.at(tensor).data);
    std::memcpy(buffer, data + offset_bytes, size_bytes);
    return WEFT_OK;
  };
  source.context = const_cast<Model*>(&model);  // NOLINT: a C context
  source.costly = true;

  const auto published = publish(source);

  EXPECT_THAT(published.id, StrEq(publish(model.source()).id));
}

TEST_F(CInterface, WhatACallbackSaysEndsThePublish) {
  const Model model;
  weft_source source = model.source();
  source.read = [](void*, size_t, std::uint64_t, void*, size_t, const void**) {
    weft_set_error_message("the GPU fell off the bus");
    return WEFT_INTERNAL;
  };
  EXPECT_EQ(weft_publish(client_, &source, nullptr, nullptr), WEFT_INTERNAL);
  EXPECT_THAT(weft_error_message(),
              AllOf(HasSubstr("a.weight"), HasSubstr("the GPU fell off the bus")));
}

TEST_F(CInterface, ProgressEndsAtAllBytes) {
  const Model model;
  std::uint64_t last = 0;
  weft_publish_options options = {};
  options.struct_size = sizeof(options);
  options.context = &last;
  options.progress = [](void* context, std::uint64_t done_bytes, std::uint64_t) {
    *static_cast<std::uint64_t*>(context) = done_bytes;
  };
  const auto source = model.source();
  ASSERT_EQ(weft_publish(client_, &source, &options, nullptr), WEFT_OK);
  EXPECT_EQ(last, 96u);
}

TEST_F(CInterface, AMistakeIsNamed) {
  Model model;
  weft_source source = model.source();
  model.tensors[1].size_bytes = 47;
  EXPECT_EQ(weft_publish(client_, &source, nullptr, nullptr), WEFT_INVALID_ARGUMENT);
  EXPECT_THAT(weft_error_message(), AllOf(HasSubstr("b.weight"), HasSubstr("47")));

  source.struct_size = 0;
  EXPECT_EQ(weft_publish(client_, &source, nullptr, nullptr), WEFT_INVALID_ARGUMENT);
  EXPECT_THAT(weft_error_message(), HasSubstr("struct_size"));
  EXPECT_EQ(weft_publish(client_, nullptr, nullptr, nullptr), WEFT_INVALID_ARGUMENT);
  weft_client* none = nullptr;
  EXPECT_EQ(weft_client_open("no url", nullptr, &none), WEFT_INVALID_ARGUMENT);
  weft_weights* weights = nullptr;
  EXPECT_EQ(weft_pull(client_, "nowhere", nullptr, &weights, nullptr), WEFT_NOT_FOUND);
  EXPECT_THAT(weft_error_message(), HasSubstr("nowhere"));
}

TEST_F(CInterface, AnOlderCallersStructIsTakenAsFarAsItGoes) {
  const Model model;
  const auto source = model.source();
  weft_publish_options options = {};
  std::memset(static_cast<void*>(&options), 0xff, sizeof(options));
  options.struct_size = offsetof(weft_publish_options, session);
  options.label = "old";
  weft_publish_report report = {};
  report.struct_size = offsetof(weft_publish_report, resumed);
  report.total_bytes = 7;
  ASSERT_EQ(weft_publish(client_, &source, &options, &report), WEFT_OK) << weft_error_message();
  EXPECT_THAT(report.id, StartsWith("blake3:"));
  EXPECT_EQ(report.total_bytes, 7u);  // past what it knows
}

TEST_F(CInterface, ACancelledClientSaysSo) {
  const Model model;
  const auto source = model.source();
  weft_client_cancel(client_);
  EXPECT_EQ(weft_publish(client_, &source, nullptr, nullptr), WEFT_CANCELLED);
}

TEST_F(CInterface, CodesAndDtypesHaveNames) {
  EXPECT_THAT(weft_code_name(WEFT_CORRUPT), StrEq("corrupt"));
  weft_dtype dtype = WEFT_BOOL;
  ASSERT_EQ(weft_dtype_parse("torch.bfloat16", &dtype), WEFT_OK);
  EXPECT_EQ(dtype, WEFT_BF16);
  ASSERT_EQ(weft_dtype_parse("F8_E4M3", &dtype), WEFT_OK);
  EXPECT_EQ(dtype, WEFT_F8_E4M3);
  EXPECT_EQ(weft_dtype_parse("complex64", &dtype), WEFT_UNSUPPORTED);
  EXPECT_EQ(weft_dtype_size(WEFT_F64), 8u);

  EXPECT_EQ(weft_abi_version(), static_cast<std::uint32_t>(WEFT_ABI_VERSION));
}

// A receiver whose callback keeps the newest weights and may be told to refuse.
struct Taker {
  ~Taker() {
    weft_weights_release(kept);
    weft_client_close(client);
    weft_receiver_close(receiver);
  }
  void open(const Model& model) {
    weft_receiver_options options = {};
    options.struct_size = sizeof(options);
    options.take = take;
    options.context = this;
    ASSERT_EQ(weft_receiver_open(model.tensors.data(), 2, &options, &receiver), WEFT_OK)
        << weft_error_message();
    ASSERT_EQ(weft_client_open(weft_receiver_url(receiver), nullptr, &client), WEFT_OK);
  }
  static weft_code take(void* context, const weft_weights* weights) {
    auto& self = *static_cast<Taker*>(context);
    if (self.refuses) {
      weft_set_error_message("does not fit");
      return WEFT_UNSUPPORTED;
    }
    weft_weights_release(std::exchange(self.kept, weft_weights_retain(weights)));
    return WEFT_OK;
  }

  bool refuses = false;
  const weft_weights* kept = nullptr;
  weft_receiver* receiver = nullptr;
  weft_client* client = nullptr;
};

TEST_F(CInterface, AReceiverHandsOverWhatWasPushed) {
  Model model;
  Taker taker;
  taker.open(model);
  for (const float value : {5.0f, 6.0f, 7.0f, 8.0f}) {
    model.first.assign(12, value);
    const auto source = model.source();
    ASSERT_EQ(weft_publish(taker.client, &source, nullptr, nullptr), WEFT_OK)
        << weft_error_message();
    EXPECT_EQ(first_of(taker.kept, "a.weight"), value);
    EXPECT_EQ(first_of(taker.kept, "b.weight"), 2.0f);
  }
}

TEST_F(CInterface, ARefusedVersionLeavesTheOneBefore) {
  Model model;
  Taker taker;
  taker.open(model);
  taker.refuses = true;
  model.first.assign(12, 5.0f);
  const auto source = model.source();
  EXPECT_EQ(weft_publish(taker.client, &source, nullptr, nullptr), WEFT_UNSUPPORTED);
  EXPECT_THAT(weft_error_message(), HasSubstr("does not fit"));
  const weft_weights* const current = weft_receiver_current(taker.receiver);
  EXPECT_EQ(first_of(current, "a.weight"), 1.0f);
  weft_weights_release(current);

  taker.refuses = false;
  EXPECT_EQ(weft_publish(taker.client, &source, nullptr, nullptr), WEFT_OK) << weft_error_message();
  EXPECT_EQ(first_of(taker.kept, "a.weight"), 5.0f);
}

TEST_F(CInterface, AReceiverPullsFromAStore) {
  Model model;
  Taker taker;
  taker.open(model);
  model.second.assign(12, 9.0f);
  publish(model.source(), "v9");
  ASSERT_EQ(weft_receiver_pull(taker.receiver, client_, "v9"), WEFT_OK) << weft_error_message();
  EXPECT_EQ(first_of(taker.kept, "b.weight"), 9.0f);
}

TEST_F(CInterface, WeightsOutliveTheirReceiver) {
  Model model;
  const weft_weights* weights = nullptr;
  {
    Taker taker;
    taker.open(model);
    weights = weft_receiver_current(taker.receiver);
  }
  EXPECT_EQ(first_of(weights, "a.weight"), 1.0f);
  weft_weights_release(weights);
}

TEST_F(CInterface, WhoLetsOthersInNeedsAKey) {
  weft_listen_options listen = {};
  listen.struct_size = sizeof(listen);
  listen.host = "0.0.0.0";
  weft_store_options options = {};
  options.struct_size = sizeof(options);
  options.listen = &listen;
  weft_store* store = nullptr;
  EXPECT_EQ(weft_store_open((dir_ / "other").c_str(), &options, &store), WEFT_INVALID_ARGUMENT);
  EXPECT_THAT(weft_error_message(), HasSubstr("admin_key"));
}

}  // namespace
}  // namespace weft
