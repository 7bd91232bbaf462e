"""The `openai` client, unchanged, against `weft serve`."""
import unittest

import openai
from weft_testing import Server


class OpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("P_qwen3"))
        cls.client = openai.OpenAI(base_url=f"{cls.server.url}/v1", api_key="any", max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    def test_completion(self):
        answer = self.client.completions.create(model=self.model, prompt="A", max_tokens=5, temperature=0, logprobs=1)
        self.assertEqual(answer.choices[0].text, "BCDEF")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.choices[0].logprobs.tokens, list("BCDEF"))
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.completion_tokens), (1, 5))

    def test_completion_of_token_ids_and_several_prompts(self):
        answer = self.client.completions.create(model=self.model, prompt=[[65], [75]], max_tokens=2, temperature=0, n=2)
        self.assertEqual([choice.text for choice in answer.choices], ["BC", "BC", "LM", "LM"])

    def test_streamed_completion(self):
        chunks = list(self.client.completions.create(model=self.model, prompt="A", max_tokens=5, temperature=0, stream=True,
                                                     stream_options={"include_usage": True}))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks if chunk.choices), "BCDEF")
        self.assertEqual(chunks[-1].usage.completion_tokens, 5)

    def test_chat(self):
        answer = self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": "hello"}], max_tokens=4, temperature=0, logprobs=True,
            top_logprobs=2)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(len(answer.choices[0].logprobs.content), answer.usage.completion_tokens)

    def test_streamed_chat_is_the_same_text(self):
        messages = [{"role": "user", "content": "hello"}]
        whole = self.client.chat.completions.create(model=self.model, messages=messages, max_tokens=8, temperature=0)
        stream = self.client.chat.completions.create(model=self.model, messages=messages, max_tokens=8, temperature=0,
                                                     stream=True)
        deltas = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        self.assertEqual("".join(deltas), whole.choices[0].message.content)

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="another", prompt="A")
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client.completions.create(model=self.model, prompt="A", temperature=-1)
        self.assertIn("temperature", str(raised.exception))

    def test_the_version_comes_with_the_answer(self):
        answer = self.client.completions.create(model=self.model, prompt="A", max_tokens=2, temperature=0)
        spans = answer.choices[0].model_extra["weight_versions"]
        self.assertEqual(spans[0]["id"], self.server.weight_info()["id"])


if __name__ == "__main__":
    unittest.main()
