#include "weft/trainer/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(std::string_view toml) {
  const auto config = parse_train_config(toml, "run.toml");
  return config ? "no error" : config.error().message();
}

TEST(TrainConfig, TakesDefaultsForWhatIsNotThere) {
  const auto config = parse_train_config("[rl]\nsteps = 7\n", "run.toml");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->rl.steps, 7u);
  EXPECT_EQ(config->rl.group_size, RlSection{}.group_size);
  EXPECT_EQ(config->task.name, "sort");
}

TEST(TrainConfig, PrintsWhatItReadsBack) {
  TrainConfig config;
  config.seed = 3;
  config.out = "a \"b\"\\c";
  config.rl.learning_rate = 4e-4;
  config.server.spawn = false;
  config.server.url = {"http://127.0.0.1:8000", "http://127.0.0.1:8001"};
  config.fault.swap_labels = true;

  const std::string text = train_config_toml(config);
  const auto again = parse_train_config(text, "printed");
  ASSERT_TRUE(again) << again.error().message() << "\n" << text;
  EXPECT_EQ(train_config_toml(*again), text);
  EXPECT_EQ(again->out, config.out);
  EXPECT_EQ(again->server.url, config.server.url);
  EXPECT_TRUE(again->fault.swap_labels);
}

TEST(TrainConfig, SuggestsTheKeyThatWasMeant) {
  EXPECT_THAT(error_of("[rl]\ngroup_sizes = 4\n"),
              AllOf(HasSubstr("run.toml:2"), HasSubstr("unknown key `rl.group_sizes`"),
                    HasSubstr("did you mean `group_size`?")));
  EXPECT_THAT(error_of("[grppo]\nsteps = 4\n"),
              AllOf(HasSubstr("unknown section `grppo`"), HasSubstr("did you mean `grpo`?")));
  EXPECT_THAT(error_of("sed = 1\n"), HasSubstr("did you mean `seed`?"));
  EXPECT_THAT(error_of("quaternions = 1\n"), testing::Not(HasSubstr("did you mean")));
}

TEST(TrainConfig, NamesKeyAndLineOfAWrongValue) {
  EXPECT_THAT(error_of("\n[rl]\nsteps = \"many\"\n"),
              AllOf(HasSubstr("run.toml:3"), HasSubstr("rl.steps must be a whole number")));
  EXPECT_THAT(error_of("[rl]\nsteps = -1\n"), HasSubstr("rl.steps must be a whole number"));
  EXPECT_THAT(error_of("[rl]\ngroup_size = 0\n"), HasSubstr("rl.group_size must be from 1"));
  EXPECT_THAT(error_of("[sft]\nlearning_rate = nan\n"),
              HasSubstr("sft.learning_rate must be at least 0"));
  EXPECT_THAT(error_of("[server]\nurl = [1]\n"), HasSubstr("server.url must be a list of strings"));
  EXPECT_THAT(error_of("task = \"sort\"\n"), HasSubstr("task must be a section"));
  EXPECT_THAT(error_of("seed = = 1\n"), HasSubstr("run.toml:1"));
}

TEST(TrainConfig, RefusesWhatContradicts) {
  EXPECT_THAT(error_of("[model]\nhidden_size = 100\nhead_dim = 32\n"), HasSubstr("multiple"));
  EXPECT_THAT(error_of("[server]\nspawn = false\n"), HasSubstr("server.url must name a server"));
  EXPECT_THAT(error_of("[server]\nurl = [\"http://127.0.0.1:1\"]\n"),
              HasSubstr("server.spawn must be false"));
  EXPECT_THAT(
      error_of("[task]\nname = \"sotr\"\n"),
      AllOf(HasSubstr("task.name is `sotr`; did you mean `sort`?"), HasSubstr("sort, add")));
  EXPECT_THAT(error_of("[score]\nkind = \"http\"\n"), HasSubstr("score.url must name the scorer"));
  EXPECT_THAT(error_of("[score]\nurl = \"http://127.0.0.1:1\"\n"),
              HasSubstr("score.kind must be `http`"));
  EXPECT_THAT(error_of("[score]\nkind = \"rul\"\n"), HasSubstr("did you mean `rule`?"));
  EXPECT_THAT(error_of("[score]\non_failure = \"zero\"\n"), HasSubstr("it may be stop, drop"));
  EXPECT_THAT(error_of("[score]\nrules = [\"arithmetic\"]\n"),
              HasSubstr("run.toml: score.rules: the rule `arithmetic`"));
}

TEST(TrainConfig, RefusesATaskWithoutData) {
  EXPECT_THAT(error_of("[task]\ndigits = 2\nheld_out = 51\n"),
              HasSubstr("more than half of the 100 questions there are"));
  EXPECT_THAT(error_of("[model]\nmax_position_embeddings = 8\n"),
              HasSubstr("have 12 tokens, but model.max_position_embeddings is 8"));
}

TEST(TrainConfig, RefusesWhatAnAlgorithmHasNoUseFor) {
  EXPECT_THAT(error_of("algorithm = \"pppo\"\n"),
              AllOf(HasSubstr("algorithm is `pppo`"), HasSubstr("did you mean `ppo`?")));
  EXPECT_THAT(error_of("[ppo]\nclip = 0.1\n"),
              AllOf(HasSubstr("run.toml:1"), HasSubstr("[ppo]"), HasSubstr("\"grpo\"")));
  EXPECT_THAT(error_of("algorithm = \"sft\"\n[rl]\nsteps = 1\n"), HasSubstr("[rl]"));
  EXPECT_THAT(error_of("algorithm = \"dpo\"\n[kl]\ncoefficient = 1\n"), HasSubstr("[kl]"));
  EXPECT_THAT(error_of("[rl]\ngroup_size = 1\n"),
              AllOf(HasSubstr("rl.group_size"), HasSubstr("algorithm = \"grpo\"")));
  EXPECT_THAT(error_of("[kl]\ntarget = 6\n"),
              AllOf(HasSubstr("kl.target"), HasSubstr("kl.coefficient")));
  EXPECT_THAT(error_of("algorithm = \"rloo\"\n[kl]\ncoefficient = 1\n"),
              AllOf(HasSubstr("kl.in"), HasSubstr("rloo")));
  EXPECT_THAT(error_of("[rl]\nminibatches = 2000\n"), HasSubstr("rl.minibatches"));
  EXPECT_THAT(error_of("[score]\nmodel = \"x\"\n"),
              AllOf(HasSubstr("score.model"), HasSubstr("score.kind")));
  EXPECT_THAT(
      error_of("[score]\nkind = \"reward_model\"\nmodel = \"x\"\n[reward_model]\nsteps = 1\n"),
      HasSubstr("[reward_model]"));
}

TEST(TrainConfig, RefusesUrlsThatAreNoneAndServersTwice) {
  EXPECT_THAT(error_of("[server]\nspawn = false\nurl = [\"localhost:8000\"]\n"),
              AllOf(HasSubstr("server.url: `localhost:8000`"), HasSubstr("http://host:port")));
  EXPECT_THAT(
      error_of("[server]\nspawn = false\nurl = [\"http://a:1\", \"http://b:1\", \"http://a:1\"]\n"),
      HasSubstr("server.url names http://a:1 twice"));
  EXPECT_THAT(error_of("[score]\nkind = \"http\"\nurl = \"judge\"\n"),
              HasSubstr("score.url: `judge`"));
}

TEST(TrainConfig, PrintsTheSectionsThatTheAlgorithmUses) {
  TrainConfig config;
  for (const char* const algorithm : {"sft", "reward_model", "ppo", "grpo", "rloo", "dpo"}) {
    config.algorithm = algorithm;
    const std::string text = train_config_toml(config);
    EXPECT_TRUE(parse_train_config(text, "printed")) << text;
    EXPECT_EQ(text.find("[ppo]") != std::string::npos, config.algorithm == "ppo");
  }
}

}  // namespace
}  // namespace weft
