"""libweft as it is installed: the C example compiles against the prefix as C11, and runs against real servers."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from weft_testing import BINARY_DIR, FIXTURES, WEFT, Listener, Server

SOURCE_DIR = pathlib.Path(os.environ["WEFT_SOURCE_DIR"])
EXAMPLE = SOURCE_DIR / "examples" / "c" / "push_and_pull.c"
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic"]


def run(*command, **more):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False, **more)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class CTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        # Moved after it was installed: nothing in it may name the place.
        run("cmake", "--install", BINARY_DIR, "--component", "library", "--prefix", cls.folder / "first")
        cls.prefix = (cls.folder / "first").rename(cls.folder / "prefix")
        library = next(cls.prefix.rglob("libweft.so")).parent
        cls.environment = dict(os.environ, PKG_CONFIG_PATH=str(library / "pkgconfig"), LD_LIBRARY_PATH=str(library))
        flags = run("pkg-config", "--cflags", "--libs", "weft", env=cls.environment).split()
        cls.program = cls.folder / "push_and_pull"
        run("gcc", "-std=c11", *WARNINGS, EXAMPLE, *flags, "-o", cls.program)

    def check_example(self, url, tensor):
        output = run(self.program, url, tensor, env=self.environment)
        published = re.search(r"^published (blake3:[0-9a-f]{64}): (\d+) bytes sent, (\d+) were there$", output, re.M)
        self.assertTrue(published, output)
        self.assertIn(f"pulled {published[1]}: as sent", output)
        self.assertGreater(int(published[3]), int(published[2]))  # only what changed was sent
        return published[1]

    def test_the_example_turns_a_tensor_of_a_server(self):
        with Server("P_llama") as server:
            id_ = self.check_example(server.url, "model.norm.weight")
            self.assertEqual(server.weight_info()["id"], id_)
            self.assertEqual(server.weight_info()["weight_version"], "signs-turned")

    def test_the_example_turns_a_tensor_of_a_store(self):
        with Listener("store", self.folder / "store", "--port", "0") as store:
            run(WEFT, "push", FIXTURES / "P_llama", "--to", store.url, "--head", "main")
            id_ = self.check_example(store.url, "model.norm.weight")
            self.assertEqual(store.get("/weft/v1/heads/main").json()["id"], id_)

    def test_the_example_says_what_is_wrong(self):
        with Listener("store", self.folder / "empty", "--port", "0") as store:
            done = subprocess.run([self.program, store.url, "x"], capture_output=True, text=True, timeout=60,
                                  env=self.environment, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("not_found", done.stderr)

    def test_cmake_finds_the_package(self):
        project = self.folder / "project"
        project.mkdir()
        shutil.copy(EXAMPLE, project / "main.c")
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES C)\nfind_package(weft 0.1 REQUIRED)\n"
            "add_executable(user main.c)\ntarget_link_libraries(user PRIVATE weft::weft)\n")
        run("cmake", "-S", project, "-B", project / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("ninja", "-C", project / "build")

    def test_the_header_is_cplusplus_too(self):
        source = self.folder / "user.cc"
        source.write_text("#include <weft/weft.h>\nint main() { return weft_abi_version() != WEFT_ABI_VERSION; }\n")
        run("g++", "-std=c++11", *WARNINGS, "-fsyntax-only", f"-I{self.prefix / 'include'}", source)

    def test_only_the_interface_is_visible(self):
        library = next(self.prefix.rglob("libweft.so"))
        symbols = re.findall(r" [A-Z] (\w+)", run("nm", "-D", "--defined-only", library))
        header = (self.prefix / "include/weft/weft.h").read_text()
        declared = re.findall(r"WEFT_API [^;{]*?\b(weft_\w+)\(", header)
        self.assertEqual(sorted(symbols), sorted(declared))


if __name__ == "__main__":
    unittest.main()
