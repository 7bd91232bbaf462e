"""A receiver in this process: versions that are handed over, refused, waited for."""
import contextlib
import gc
import socket
import tempfile
import threading
import unittest

import numpy
import weft


def tensors(value):
    return {"a": numpy.full((3, 4), value, numpy.float32), "b": numpy.full(5, value, numpy.float32)}


class CountingProxy:
    """Passes connections on to `url`, and counts what comes back."""

    def __init__(self, url):
        host, port = url.removeprefix("http://").split(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.received_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):  # it is closed
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._server)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(*ends, server), daemon=True).start()

    def _pump(self, source, target, server):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source is server:
                    self.received_bytes += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()


class ReceiveTest(unittest.TestCase):
    def test_each_version_is_handed_over(self):
        seen = []
        with weft.Receiver(tensors(0), lambda version: seen.append(version["a"].numpy()[0, 0].item())) as receiver, \
                weft.Publisher(receiver.url) as publisher:
            for value in range(1, 6):
                publisher.publish(tensors(value), label=f"v{value}").result(60)
                self.assertEqual(seen[-1], value)
                self.assertEqual(receiver.current.label, f"v{value}")

    def test_what_the_callback_raises_refuses_the_version(self):
        def take(version):
            if version["a"].numpy()[0, 0] == 2:
                raise RuntimeError("does not fit")

        with weft.Receiver(tensors(0), take) as receiver, weft.Publisher(receiver.url, retries=0) as publisher:
            publisher.publish(tensors(1)).result(60)
            with self.assertRaisesRegex(weft.Error, "RuntimeError: does not fit"):
                publisher.publish(tensors(2)).result(60)
            self.assertEqual(receiver.current["a"].numpy()[0, 0], 1)
            publisher.publish(tensors(3)).result(60)
            self.assertEqual(receiver.current["a"].numpy()[0, 0], 3)

    def test_iterating_waits_for_the_newest_and_ends_with_the_receiver(self):
        seen = []
        with weft.Receiver(tensors(0)) as receiver:
            def read():
                for version in receiver:
                    seen.append(version["b"].numpy()[0].item())

            reader = threading.Thread(target=read)
            reader.start()
            with weft.Publisher(receiver.url) as publisher:
                for value in range(1, 5):
                    publisher.publish(tensors(value)).result(60)
        reader.join(60)
        self.assertFalse(reader.is_alive())
        self.assertEqual(seen, sorted(seen))
        self.assertEqual(seen[-1], 4)

    def test_a_version_that_someone_holds_is_not_written_over(self):
        with weft.Receiver(tensors(0)) as receiver, weft.Publisher(receiver.url) as publisher:
            publisher.publish(tensors(1)).result(60)
            held = receiver.next_version(60)["a"].numpy()
            publisher.publish(tensors(2)).result(60)
            third = publisher.publish(tensors(3))
            self.assertEqual(held.max(), 1)
            self.assertFalse(third.done())
            del held
            gc.collect()
            third.result(60)
            self.assertEqual(receiver.current["a"].numpy()[0, 0], 3)

    def test_no_version_within_the_time_is_a_timeout(self):
        with weft.Receiver(tensors(0)) as receiver, self.assertRaises(TimeoutError):
            receiver.next_version(0.01)

    def test_other_tensors_are_refused_by_name(self):
        with weft.Receiver(tensors(0)) as receiver, weft.Publisher(receiver.url) as publisher:
            with self.assertRaisesRegex(weft.InvalidArgumentError, "c"):
                publisher.publish(tensors(1) | {"c": numpy.ones(2, numpy.float32)}).result(60)
            with self.assertRaisesRegex(weft.InvalidArgumentError, "b"):
                publisher.publish({"a": tensors(1)["a"]}).result(60)
            self.assertEqual(receiver.current["a"].numpy()[0, 0], 0)

    def test_shapes_alone_are_zeros(self):
        class Meta:
            name, dtype, shape = "t", "bfloat16", (4, 2)

        with weft.Receiver([Meta]) as receiver:
            self.assertEqual(receiver.current["t"].tobytes(), bytes(16))

    def test_a_receiver_takes_from_a_store(self):
        with tempfile.TemporaryDirectory() as folder, weft.Store(folder) as store, \
                weft.Publisher(store) as publisher, weft.Receiver(tensors(0)) as receiver:
            publisher.publish(tensors(6), head="main").result(60)
            receiver.pull(store)
            self.assertEqual(receiver.next_version(60)["b"].numpy()[0], 6)

    def test_of_a_store_s_deltas_it_takes_what_changed(self):
        weights = numpy.random.default_rng(0).standard_normal(1 << 20, numpy.float32)
        with tempfile.TemporaryDirectory() as folder, weft.Store(folder) as store, weft.Publisher(store, delta=True) as publisher, \
                CountingProxy(store.url) as proxy, weft.Receiver({"w": weights * 0}) as receiver:
            for version in range(2):
                weights[version::1000] += 1
                publisher.publish({"w": weights}, head="main").result(60)
                before = proxy.received_bytes
                receiver.pull(proxy.url)
                fetched = proxy.received_bytes - before
                numpy.testing.assert_array_equal(receiver.current["w"].numpy(), weights)
                self.assertLess(fetched, weights.nbytes // 100 if version else 2 * weights.nbytes)

    def test_keys_are_asked_for(self):
        with weft.Receiver(tensors(0), admin_key="secret", read_key="look") as receiver:
            for key in (None, "old", "look"):
                with weft.Publisher(receiver.url, key=key) as publisher, self.assertRaises(PermissionError):
                    publisher.publish(tensors(1)).result(60)
            with weft.Publisher(receiver.url, key="secret") as publisher:
                publisher.publish(tensors(1)).result(60)
            self.assertEqual(weft.pull(receiver.url, key="look")["a"].numpy()[0, 0], 1)

    def test_beyond_this_machine_only_with_a_key(self):
        with self.assertRaisesRegex(weft.InvalidArgumentError, "admin_key"):
            weft.Receiver(tensors(0), host="0.0.0.0")


if __name__ == "__main__":
    unittest.main()
