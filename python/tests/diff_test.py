"""What changed, as a file, as deltas from an origin, and in place."""
import pathlib
import tempfile
import unittest

import numpy
import weft
from weft import _weft


def model(seed, changed=0):
    """Three tensors, of which `changed` elements are others than with 0."""
    random = numpy.random.default_rng(seed)
    tensors = {name: random.standard_normal((256, 512), numpy.float32) for name in "abc"}
    tensors["b"].reshape(-1)[:changed] += 1
    return tensors


class DiffTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_a_diff_makes_the_version_of_its_base(self):
        base, target = model(1), model(1, changed=5)
        written = weft.diff(base, target, self.folder / "d")
        self.assertEqual(written.file_bytes, (self.folder / "d").stat().st_size)
        self.assertLess(written.file_bytes, written.total_bytes / 100)
        made = weft.apply(base, self.folder / "d")
        self.assertEqual(made.id, written.id)
        for name, tensor in target.items():
            numpy.testing.assert_array_equal(made[name].numpy(), tensor)
        report = weft.apply(base, self.folder / "d", self.folder / "model")
        self.assertEqual((report.id, report.changed_blocks), (written.id, 1))
        self.assertEqual(weft.diff(self.folder / "model", target, self.folder / "none").changed_blocks, 0)

    def test_another_base_and_a_broken_file_are_refused(self):
        weft.diff(model(1), model(1, changed=5), self.folder / "d")
        with self.assertRaises(weft.ConflictError):
            weft.apply(model(2), self.folder / "d")
        data = bytearray((self.folder / "d").read_bytes())
        data[len(data) // 2] ^= 1
        (self.folder / "d").write_bytes(data)
        with self.assertRaises(weft.CorruptError):
            weft.apply(model(1), self.folder / "d", self.folder / "model")
        self.assertFalse((self.folder / "model").exists())


class OriginTest(unittest.TestCase):
    def setUp(self):
        self.origin = self.enterContext(weft.Origin())
        self.publisher = self.enterContext(weft.Publisher(self.origin, delta=True))

    def publish(self, tensors, **more):
        return self.publisher.publish(tensors, **more).result(60)

    def test_what_is_published_is_pulled_and_may_be_changed_then(self):
        tensors = model(1)
        report = self.publish(tensors, label="step-1")
        tensors["a"][:] = 0
        for version in ("step-1", "#main", report.id):
            pulled = weft.pull(self.origin, version)
            self.assertEqual(pulled.id, report.id)
        numpy.testing.assert_array_equal(pulled["a"].numpy(), model(1)["a"])

    def test_what_changed_comes_as_a_delta(self):
        self.publish(model(1))
        before = weft.pull(self.origin)
        published = self.publish(model(1, changed=9))
        self.assertGreater(published.delta_bytes, 0)
        after, report = _weft.Client(self.origin.url).pull("#main", base_weights=before._weights)
        self.assertEqual(after.id, published.id)
        self.assertEqual(report["deltas"], 1)
        self.assertLess(report["fetched_bytes"], report["total_bytes"] / 100)
        self.assertEqual(weft.pull(self.origin, base=before).id, published.id)

    def test_a_pull_in_full_shares_what_is_equal(self):
        self.publish(model(1))
        before = weft.pull(self.origin)
        self.publish({**model(2), "a": model(1)["a"]})
        after, report = _weft.Client(self.origin.url).pull("#main", base_weights=before._weights)
        self.assertEqual((report["deltas"], report["held_bytes"]), (0, model(1)["a"].nbytes))

    def test_two_versions_are_held_and_what_is_read_stays(self):
        first = self.publish(model(1)).id
        pulled = weft.pull(self.origin, first)
        second = self.publish(model(2)).id
        self.assertEqual(weft.pull(self.origin, first).id, first)
        third = self.publish(model(3)).id
        with self.assertRaises(weft.NotFoundError):
            weft.pull(self.origin, first)
        self.assertEqual({weft.pull(self.origin, id_).id for id_ in (second, third)}, {second, third})
        numpy.testing.assert_array_equal(pulled["c"].numpy(), model(1)["c"])

    def test_the_same_again_is_the_same_version(self):
        self.assertEqual(self.publish(model(1), label="a").id, self.publish(model(1), label="b").id)
        self.assertEqual(weft.pull(self.origin, "b").id, weft.pull(self.origin).id)

    def test_another_model_may_follow(self):
        self.publish(model(1))
        self.publish({"x": numpy.ones(3)}, files={"config.json": "{}"})
        pulled = weft.pull(self.origin)
        self.assertEqual((list(pulled), pulled.files), (["x"], {"config.json": b"{}"}))

    def test_what_a_store_can_do_and_an_origin_cannot_is_said(self):
        with self.assertRaisesRegex(weft.InvalidArgumentError, "head"):
            self.publish(model(1), head="canary")
        self.publish(model(1))
        with weft.Publisher(self.origin.url) as publisher, self.assertRaises(weft.NotFoundError):
            publisher.publish(model(2)).result(60)

    def test_a_key_opens_it(self):
        with weft.Origin(admin_key="all", read_key="look") as origin, weft.Publisher(origin) as publisher:
            publisher.publish(model(1)).result(60)
            with self.assertRaises(weft.UnauthenticatedError):
                weft.pull(origin.url)
            self.assertEqual(weft.pull(origin.url, key="look").id, weft.pull(origin).id)


class ChangesTest(unittest.TestCase):
    def test_changes_are_told_one_by_one_and_applied_in_place(self):
        sizes = [self.check_changes(small) for small in (False, True)]
        self.assertGreater(sizes[0], sizes[1])

    def check_changes(self, small):
        """Returns the bytes of the delta."""
        with weft.Origin(small_deltas=small) as origin, weft.Publisher(origin, delta=True) as publisher:
            publisher.publish(model(1)).result(60)
            client = _weft.Client(origin.url)
            weights, _ = client.pull("#main")
            published = publisher.publish(model(1, changed=900)).result(60)
            changes, report = _weft.pull_changes(client, "#main", weights)
            self.assertEqual(report["id"], published.id)
            [tensor] = changes.tensors()
            self.assertEqual((weights.tensors()[tensor][0], changes.elements(0)[0]), ("b", 900))
            place = model(1)["b"]
            changes.check(0, place.ctypes.data)
            changes.write(0, place.ctypes.data)
            numpy.testing.assert_array_equal(place, model(1, changed=900)["b"])
            with self.assertRaisesRegex(weft.ConflictError, "tensor `b`"):
                changes.check(0, place.ctypes.data)
            changes.undo(0, place.ctypes.data)
            numpy.testing.assert_array_equal(place, model(1)["b"])
            changes.verify()
            after = changes.apply()
            changes.verify()
            self.assertEqual(after.id, published.id)
            numpy.testing.assert_array_equal(weft.Version(after)["b"].numpy(), model(1, changed=900)["b"])
            with self.assertRaises(weft.ConflictError):
                changes.apply()
            return published.delta_bytes

    def test_too_many_changes_are_pulled_in_full(self):
        with weft.Origin() as origin, weft.Publisher(origin, delta=True) as publisher:
            publisher.publish(model(1)).result(60)
            client = _weft.Client(origin.url)
            weights, _ = client.pull("#main")
            publisher.publish(model(1, changed=100_000)).result(60)
            with self.assertRaises(weft.UnsupportedError):
                _weft.pull_changes(client, "#main", weights)

    def test_memory_that_is_not_needed_is_written_over(self):
        with weft.Origin() as origin, weft.Publisher(origin, delta=True) as publisher:
            publisher.publish(model(1)).result(60)
            client = _weft.Client(origin.url)
            weights, _ = client.pull("#main")
            address = weights.address(0)
            publisher.publish(model(2)).result(60)
            told = []
            fresh, _ = client.pull("#main", reuse=weights, tensor=lambda name, dtype, shape, place: told.append((name, shape, place)))
            self.assertEqual(fresh.address(0), address)
            self.assertEqual(sorted(told), [(name, (256, 512), fresh.address(i)) for i, name in enumerate("abc")])
            numpy.testing.assert_array_equal(weft.Version(fresh)["a"].numpy(), model(2)["a"])


if __name__ == "__main__":
    unittest.main()
