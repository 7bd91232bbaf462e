"""What SkyRL, prime-rl, verl, TRL's asynchronous trainer and vLLM's examples send, call by call and with the libraries that they use,
while `weft serve` gets new weights."""
import asyncio
import concurrent.futures
import unittest

import aiohttp
import httpx
import requests
import weft
from safetensors.torch import load_file
from weft_testing import FIXTURES, Server


def turned():
    """Other weights for P_qwen3."""
    tensors = load_file(FIXTURES / "P_qwen3" / "model.safetensors")
    tensors["model.norm.weight"] = -tensors["model.norm.weight"]
    return tensors


class Frameworks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.origin = cls.enterClassContext(weft.Origin())
        # With the model's files, so that the server's version is this one, and not this one with its own files.
        files = {file.name: file.read_bytes() for file in (FIXTURES / "P_qwen3").iterdir() if file.suffix == ".json"}
        with weft.Publisher(cls.origin) as publisher:
            cls.version = publisher.publish(turned(), files=files).result(60).id
        cls.update = {"version": cls.version, "source": cls.origin.url}

    def serve(self, *flags):
        return self.enterContext(Server("P_qwen3", "--allow-source", self.origin.url, *flags))

    def assert_updated(self, server, label):
        self.assertEqual(server.weight_info()["weight_version"], label)
        self.assertEqual(server.weight_info()["id"], self.version)


class SkyRlTest(Frameworks):
    async def call(self, session, method, url, **more):
        """As its client reads answers: only those with a length, and then they must be JSON."""
        async with session.request(method, url, **more) as answer:
            self.assertLess(answer.status, 400, await answer.text())
            self.assertGreater(answer.content_length, 0)
            self.assertEqual(answer.content_type, "application/json")
            return await answer.json()

    def test_a_step(self):
        asyncio.run(self.step([self.serve(), self.serve()]))

    async def step(self, servers):
        async with aiohttp.ClientSession() as session:
            async def all_servers(path, **more):
                return await asyncio.gather(*(self.call(session, "POST", server.url + path, **more) for server in servers))

            sizes = [await self.call(session, "GET", server.url + "/get_world_size", json={}) for server in servers]
            self.assertEqual(sizes, [{"world_size": 1}] * 2)
            await all_servers("/init_weight_transfer_engine", json={"init_info": {}})
            await all_servers("/pause?mode=keep&clear_cache=false")
            await all_servers("/sleep?level=2&tags=weights")
            await all_servers("/wake_up?tags=weights")
            await all_servers("/start_weight_update")
            await all_servers("/update_weights", json={"update_info": self.update})
            await all_servers("/finish_weight_update", json={"weight_version": "7"})
            await all_servers("/wake_up?tags=kv_cache")
            await all_servers("/reset_prefix_cache", json={"reset_running_requests": True})
            await all_servers("/resume")
            answer = await self.call(session, "POST", servers[0].url + "/inference/v1/generate", headers={"X-Session-ID": "s-1"}, json={
                "model": "P_qwen3", "token_ids": [65, 66], "cache_salt": "7",
                "sampling_params": {"max_tokens": 4, "temperature": 1.0, "seed": 1, "logprobs": 0}})
        choice = answer["choices"][0]
        self.assertEqual(len(choice["token_ids"]), len(choice["logprobs"]["content"]))
        self.assertIsInstance(choice["logprobs"]["content"][0]["logprob"], float)
        self.assertIn(choice["finish_reason"], ("length", "stop"))
        for server in servers:
            self.assert_updated(server, "7")

    def test_its_own_calls_to_workers_are_refused_in_words(self):
        server = self.serve()
        answer = requests.post(server.url + "/collective_rpc", json={"method": "skyrl_start_weight_update",
                                                                     "kwargs": {"is_checkpoint_format": True}}, timeout=60)
        self.assertGreaterEqual(answer.status_code, 400)
        self.assertIn("skyrl_start_weight_update", answer.json()["error"]["message"])

    def test_the_newer_client(self):
        servers = [self.serve(), self.serve()]
        with requests.Session() as session, concurrent.futures.ThreadPoolExecutor() as pool:
            session.headers["Connection"] = "close"

            def all_servers(path, body=None):
                for answer in pool.map(lambda server: session.post(server.url + path, json=body), servers):
                    self.assertLess(answer.status_code, 400, answer.text)

            all_servers("/init_weight_transfer_engine", {"init_info": {}})
            all_servers("/pause?mode=keep&clear_cache=false")
            all_servers("/start_weight_update")
            all_servers("/update_weights", {"update_info": self.update})
            all_servers("/finish_weight_update", {"weight_version": "8"})
            all_servers("/resume")
        for server in servers:
            self.assert_updated(server, "8")


class PrimeRlTest(Frameworks):
    def test_a_step(self):
        server = self.serve("--allow-path", FIXTURES)
        before = server.complete("A", 4)["text"]
        with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer any"}, timeout=60) as client:
            self.assertIn(client.get("/health").status_code, (200, 404))
            self.assertIn("P_qwen3", [model["id"] for model in client.get("/v1/models").json()["data"]])
            started = client.post("/init_broadcaster", json={"host": "127.0.0.1", "port": 29501, "rank_offset": 0,
                                                             "inference_world_size": 1, "timeout": 600})
            self.assertIn(started.status_code, (200, 404))
            client.post("/pause?mode=keep&clear_cache=false").raise_for_status()
            with concurrent.futures.ThreadPoolExecutor() as pool:
                waiting = pool.submit(server.complete, "A", 4)
                # Its body for a checkpoint on a shared disk; twice, since it sends again what it had no answer to.
                for _ in range(2):
                    answer = client.post("/update_weights", json={"weight_dir": str(FIXTURES / "P_qwen3")})
                    self.assertEqual((answer.status_code, answer.json()["status"]), (200, "ok"))
                client.post("/resume").raise_for_status()
                self.assertEqual(waiting.result(60)["text"], before)
            self.assertEqual(client.get("/liveness").status_code in (200, 404), True)

    def test_a_folder_that_is_not_allowed(self):
        server = self.serve()
        answer = httpx.post(server.url + "/update_weights", json={"weight_dir": str(FIXTURES)})
        self.assertEqual(answer.status_code, 403)
        self.assertEqual(answer.json()["error"]["code"], 403)


class VerlTest(Frameworks):
    def test_a_step(self):
        server = self.serve()
        with requests.Session() as session:
            for path, body in (("/pause?mode=abort&clear_cache=true", None), ("/sleep?level=2", None), ("/wake_up?tags=weights", None),
                               ("/start_weight_update", None), ("/update_weights", {"update_info": self.update}),
                               ("/finish_weight_update", {"weight_version": "global_step_3"}), ("/wake_up?tags=kv_cache", None),
                               ("/reset_prefix_cache?reset_external=true", None), ("/resume", None)):
                answer = session.post(server.url + path, json=body, timeout=60)
                self.assertEqual(answer.status_code, 200, (path, answer.text))
                answer.json()
        self.assert_updated(server, "global_step_3")
        self.assertEqual(len(server.complete("A", 4)["text"]), 4)


class VllmExamplesTest(Frameworks):
    def test_a_step_of_the_example(self):
        server = self.serve()
        self.assertEqual(requests.get(server.url + "/health", timeout=5).status_code, 200)
        self.assertEqual(requests.get(server.url + "/get_world_size", timeout=10).json()["world_size"], 1)

        def post(path, body=None):
            requests.post(server.url + path, json=body, timeout=300).raise_for_status()

        post("/init_weight_transfer_engine", {"init_info": {}})
        post("/pause")
        post("/start_weight_update")
        post("/update_weights", {"update_info": self.update})
        post("/finish_weight_update")
        post("/resume")
        self.assertEqual(server.weight_info()["id"], self.version)

    def test_trl_asynchronous(self):
        server = self.serve()
        self.assertIsInstance(requests.get(server.url + "/v1/models", timeout=5).json()["data"][0]["max_model_len"], int)
        dtype = requests.get(server.url + "/server_info?config_format=json", timeout=5).json()["vllm_config"]["model_config"]["dtype"]
        self.assertRegex(dtype, r"^torch\.\w+$")

        def post(path, body=None, status=200):
            answer = requests.post(server.url + path, json=body, timeout=300)
            self.assertEqual(answer.status_code, status, answer.text)

        post("/init_weight_transfer_engine", {"init_info": {}})
        post("/pause?mode=keep")
        post("/start_weight_update", {"is_checkpoint_format": True})
        post("/update_weights", {"update_info": self.update | {"packed": True}})
        post("/finish_weight_update")
        # An update that fails, and the finish that it sends nevertheless: nothing is published.
        post("/start_weight_update", {"is_checkpoint_format": True})
        post("/update_weights", {"update_info": {"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[1]]}}, status=400)
        before = server.weight_info()
        requests.post(server.url + "/finish_weight_update", timeout=60)
        self.assertEqual(server.weight_info()["id"], before["id"])
        post("/resume")
        answer = requests.post(server.url + "/v1/completions", timeout=60, json={
            "model": "P_qwen3", "prompt": [65, 66], "max_tokens": 4, "temperature": 1.0, "n": 1, "return_token_ids": True, "logprobs": 0})
        choice = answer.json()["choices"][0]
        self.assertEqual(len(choice["token_ids"]), len(choice["logprobs"]["token_logprobs"]))


if __name__ == "__main__":
    unittest.main()
