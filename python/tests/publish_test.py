"""Publishing and pulling between this process and a store, with numpy and plain buffers."""
import array
import pathlib
import tempfile
import threading
import unittest

import numpy
import weft


class PublishTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.store = weft.Store(pathlib.Path(self.folder.name) / "store")
        self.addCleanup(self.store.close)

    def publish(self, tensors, **more):
        with weft.Publisher(self.store) as publisher:
            return publisher.publish(tensors, head="main", **more).result(60)

    def test_what_is_published_is_pulled(self):
        tensors = {"b": numpy.arange(12, dtype=numpy.float32).reshape(3, 4), "a": numpy.ones((), numpy.int64)}
        report = self.publish(tensors, label="step-1", files={"config.json": "{}"})
        version = weft.pull(self.store, "step-1")
        self.assertEqual(version.id, report.id)
        self.assertEqual(list(version), ["a", "b"])
        self.assertEqual(version["b"].shape, (3, 4))
        self.assertEqual(version["b"].dtype, "float32")
        numpy.testing.assert_array_equal(version["b"].numpy(), tensors["b"])
        self.assertEqual(version["a"].numpy(), 1)
        self.assertEqual(version.files, {"config.json": b"{}"})

    def test_every_numpy_dtype_that_a_version_can_have(self):
        for name in ("bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "float64",
                     "int64", "uint64"):
            with self.subTest(name):
                given = (numpy.arange(6) % 2).astype(name)
                self.publish({"t": given})
                got = weft.pull(self.store)["t"].numpy()
                self.assertEqual(got.dtype, given.dtype)
                numpy.testing.assert_array_equal(got, given)

    def test_what_is_not_contiguous_or_not_little_endian_is_put_right(self):
        plain = numpy.arange(24, dtype=numpy.float32).reshape(4, 6)
        id_ = self.publish({"t": plain[::2, 1:4].copy()}).id
        self.assertEqual(self.publish({"t": plain[::2, 1:4]}).id, id_)
        self.assertEqual(self.publish({"t": plain[::2, 1:4].astype(">f4")}).id, id_)
        self.assertEqual(self.publish({"t": memoryview(plain)[::2]}).id, self.publish({"t": plain[::2].copy()}).id)

    def test_buffers_and_empty_tensors(self):
        self.publish({"bytes": b"abc", "array": array.array("d", [1, 2]), "none": numpy.zeros((0, 4), numpy.float32)})
        version = weft.pull(self.store)
        self.assertEqual(version["bytes"].tobytes(), b"abc")
        self.assertEqual(version["array"].dtype, "float64")
        self.assertEqual(version["none"].numpy().shape, (0, 4))

    def test_pairs_are_taken_as_a_mapping_is(self):
        tensors = {"x": numpy.ones(3, numpy.float32), "y": numpy.zeros(2, numpy.float32)}
        self.assertEqual(self.publish(iter(tensors.items())).id, self.publish(tensors).id)

    def test_what_can_be_no_version_is_named(self):
        for tensors, error, words in [
            ({"x": 3.5}, weft.InvalidArgumentError, "x: is a float"),
            ({"x": numpy.ones(2, numpy.complex64)}, weft.UnsupportedError, "x: dtype complex64"),
            ({"x": numpy.array(["a"])}, weft.UnsupportedError, "x: dtype"),
            ({3: numpy.ones(2)}, weft.InvalidArgumentError, "name"),
            ([("x", numpy.ones(2)), ("x", numpy.ones(2))], weft.InvalidArgumentError, "x"),
        ]:
            with self.subTest(words), self.assertRaisesRegex(error, words):
                self.publish(tensors)

    def test_progress_ends_at_all_bytes(self):
        seen = []
        with weft.Publisher(self.store) as publisher:
            publication = publisher.publish({"t": numpy.ones(100_000, numpy.float32)}, progress=lambda *now: seen.append(now))
            publication.result(60)
        self.assertEqual(seen[-1], (400_000, 400_000))
        self.assertEqual(publication.progress, (400_000, 400_000))

    def test_deltas_are_over_what_was_published_last(self):
        value = numpy.random.default_rng(1).standard_normal(3_000_000).astype(numpy.float32)
        with weft.Publisher(self.store, delta=True) as publisher:
            publisher.publish({"t": value}).result(60)
            value[::1000] += 1
            second = publisher.publish({"t": value}, head="main")
            value[:] = 0  # it was copied
            report = second.result(60)
            self.assertGreater(report.delta_bytes, 0)
            self.assertLess(report.sent_bytes, value.nbytes / 20)
            for step in range(3):
                value[step] = 7
                report = publisher.publish({"t": value}, head="main").result(60)
        numpy.testing.assert_array_equal(weft.pull(self.store)["t"].numpy(), value)

    def test_a_source_of_vllms_shape_is_read_in_order_in_this_thread(self):
        values = {f"layer.{i}": numpy.full((50, 7), i, numpy.float32) for i in range(20)}
        threads = set()

        class Meta:
            def __init__(self, name, value):
                self.name, self.dtype, self.shape = name, value.dtype, value.shape

        class Source:
            def metadata(self):
                return [Meta(*pair) for pair in values.items()]

            def __iter__(self):
                threads.add(threading.get_ident())
                yield from values.items()

        self.assertIsInstance(Source(), weft.WeightSource)
        report = self.publish(Source())
        self.assertEqual(threads, {threading.get_ident()})
        self.assertEqual(report.id, self.publish(values).id)

        wrong = Source()
        wrong.metadata = lambda: [Meta("layer.0", values["layer.0"].T)]
        with self.assertRaisesRegex(weft.InvalidArgumentError, "layer.0"):
            self.publish(wrong)
        with weft.Publisher(self.store, is_sender=False) as other_rank:
            self.assertIsNone(other_rank.publish(Source()).result(60))

    def test_what_a_source_raises_is_raised(self):
        class Source:
            def metadata(self):
                return []

            def __iter__(self):
                raise OSError("rank 3 is gone")

        with self.assertRaisesRegex(OSError, "rank 3"):
            self.publish(Source())

    def test_a_head_that_was_moved_is_a_precondition_that_failed(self):
        self.publish({"t": numpy.ones(3)})
        with self.assertRaises(weft.PreconditionFailedError) as raised:
            self.publish({"t": numpy.zeros(3)}, if_match="blake3:" + "0" * 64)
        self.assertIsInstance(raised.exception, weft.ConflictError)

    def test_a_pull_into_a_folder_is_a_model(self):
        self.publish({"t": numpy.ones(3, numpy.float32)}, files={"config.json": "{}"})
        folder = pathlib.Path(self.folder.name) / "model"
        report = weft.pull(self.store, "#main", folder)
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["config.json", "model.safetensors"])
        with self.assertRaises(weft.ConflictError):
            weft.pull(self.store, "#main", folder)
        self.assertEqual(self.publish(folder).id, report.id)

    def test_blocks_at_hand_are_not_fetched(self):
        tensors = {"x": numpy.ones(1000, numpy.float32), "y": numpy.ones(1000, numpy.float32)}
        self.publish(tensors)
        first = weft.pull(self.store)
        self.publish(tensors | {"y": numpy.zeros(1000, numpy.float32)})
        report = weft.pull(self.store, "#main", pathlib.Path(self.folder.name) / "pulled", base=first)
        self.assertGreaterEqual(report.held_bytes, 4000)

    def test_a_version_that_is_not_there_is_not_found(self):
        with self.assertRaises(KeyError) as raised:
            weft.pull(self.store, "step-9")
        self.assertIn("step-9", str(raised.exception))
        self.assertIsInstance(raised.exception, weft.NotFoundError)

    def test_tensors_outlive_their_version(self):
        self.publish({"t": numpy.ones(100_000, numpy.float32)})
        kept = weft.pull(self.store)["t"].numpy()
        self.assertEqual(kept.sum(), 100_000)
        with self.assertRaises(ValueError):
            kept[0] = 2


if __name__ == "__main__":
    unittest.main()
