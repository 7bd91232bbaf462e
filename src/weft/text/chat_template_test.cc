#include "weft/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string render(std::string_view source, std::string_view context = "{}") {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed) return "parse: " + parsed.error().message();
  const auto text = (*parsed)->render(context);
  return text ? *text : "render: " + text.error().message();
}

TEST(ChatTemplate, RendersAConversation) {
  EXPECT_EQ(render("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] }}<|im_end|>\n"
                   "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
                   R"({"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true})"),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, TrimsBlocksAsTransformersDoes) {
  EXPECT_EQ(render("a\n  {% if true %}\nb\n  {%- endif %}\nc\n\n"), "a\nbc\n");
}

TEST(ChatTemplate, WalksBackwardsWithANamespaceAndAnIndex) {
  EXPECT_EQ(
      render("{%- set ns = namespace(last=-1) %}{% for m in messages[::-1] %}"
             "{%- if m.role == 'user' and ns.last < 0 %}{% set ns.last = loop.index0 %}{% endif %}"
             "{%- endfor %}{{ (messages|length - 1) - ns.last }}",
             R"({"messages":[{"role":"user"},{"role":"user"},{"role":"tool"}]})"),
      "1");
}

TEST(ChatTemplate, HasPythonsStringMethods) {
  EXPECT_EQ(render("{{ text.split('</think>')[-1].lstrip('\\n') }}|{{ text.split('</think>')[0]"
                   ".rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}|{{ text.startswith('<') }}"
                   "|{{ text.strip().upper()[:3] }}",
                   R"({"text":"<think>\na\n</think>\n\nb"})"),
            "b|a|True|<TH");
}

TEST(ChatTemplate, TojsonIsPythonsJsonDumps) {
  const char* context = R"({"v":{"b":[1,2.5,null,true],"a":"<é'&\n>","e":{},"l":[]}})";

  EXPECT_EQ(render("{{ v | tojson }}", context),
            R"({"b": [1, 2.5, null, true], "a": "<é'&\n>", "e": {}, "l": []})");
  EXPECT_EQ(render("{{ v | tojson(sort_keys=true, ensure_ascii=true) }}", context),
            R"({"a": "<\u00e9'&\n>", "b": [1, 2.5, null, true], "e": {}, "l": []})");
  EXPECT_EQ(render("{{ v | tojson(separators=[',',':']) }}", context),
            R"({"b":[1,2.5,null,true],"a":"<é'&\n>","e":{},"l":[]})");
  EXPECT_EQ(render("{{ v.b[:2] | tojson(indent=2) }}", context), "[\n  1,\n  2.5\n]");
  EXPECT_THAT(render("{{ nothing | tojson }}"), HasSubstr("not defined"));
}

TEST(ChatTemplate, PrintsValuesAsPythonDoes) {
  EXPECT_EQ(render("{{ none }} {{ true }} {{ nothing }} {{ v }}",
                   R"({"v":["a","it's",{"k":null,"x":[1.0,false]}]})"),
            R"(None True  ['a', "it's", {'k': None, 'x': [1.0, False]}])");
}

TEST(ChatTemplate, TestsWhatIsDefined) {
  EXPECT_EQ(
      render("{{ 1 if tools is defined and tools else 2 }}{% if x is not defined %}n{% endif %}"
             "{{ 's' if s is string else '' }}{{ 'm' if s is mapping else '' }}",
             R"({"s":"x"})"),
      "2ns");
}

TEST(ChatTemplate, GenerationTagsRenderTheirBody) {
  EXPECT_EQ(render("{% for m in [1, 2] %}\n{%- generation %}\n<{{ m }}>\n{%- endgeneration -%}\n"
                   "{% endfor %}|{{ 'generation' }}"),
            "<1><2>|generation");
}

TEST(ChatTemplate, LoopsBreakAndContinue) {
  EXPECT_EQ(render("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
                   "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "023");
}

TEST(ChatTemplate, MacrosRender) {
  EXPECT_EQ(render("{% macro show(x, y=2) %}[{{ x }}{{ y }}]{% endmacro %}{{ show(1) }}"), "[12]");
}

TEST(ChatTemplate, KnowsTheDate) {
  EXPECT_THAT(render("{{ strftime_now('%Y-%m-%d') }}"),
              ::testing::MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}"));
}

TEST(ChatTemplate, FailsInTheTemplatesOwnWords) {
  EXPECT_EQ(render("\n{{ raise_exception('Roles must alternate') }}"),
            "render: chat template: line 2: Roles must alternate");
  EXPECT_THAT(render("{% if %}"), HasSubstr("parse: chat template: line 1: "));
  EXPECT_THAT(render("{{ a.b.c }}"), HasSubstr("render: chat template: line 1"));
  EXPECT_THAT(render("x", "{"), HasSubstr("context: EOF"));
}

}  // namespace
}  // namespace weft
