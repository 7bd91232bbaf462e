"""docs/openapi.yaml and the servers have the same routes: the tables in the sources are read, and each route is asked for."""
import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ["WEFT_SOURCE_DIR"])
METHODS = "GET|POST|PUT|DELETE"
# Rows of route tables: plain("GET", "/path", ...), {"GET", "/path", ...}, route(pulls, "GET", "/path", ...); and rows that are filled in.
ROW = re.compile(rf'"({METHODS})"(?:,|;\s*\w+\.pattern =)\s*"(/[^"]*)"')
# Tables whose rows are all of one method.
GET_ROW = re.compile(r'route\((?:source, )?"(/weft/v1/[^"]*)"')


def documented():
    """(METHOD, path) of each operation; a reader of YAML is not in the standard library, but the file is laid out for one line each."""
    routes, path = set(), None
    for line in (SOURCE / "docs/openapi.yaml").read_text().splitlines():
        if line == "components:":
            break
        if match := re.fullmatch(r"  (/\S*):", line):
            path = match[1]
        elif match := re.fullmatch(rf"    ({METHODS.lower()}):", line):
            routes.add((match[1].upper(), path))
    return routes


def answered():
    routes = set()
    for folder in "app", "serving", "store", "transfer":
        for file in sorted((SOURCE / "src/weft" / folder).rglob("*.cc")):
            if file.name.endswith("_test.cc") or "publisher" in file.name or "pull_fetch" in file.name:
                continue  # tests, and clients that name the same paths
            text = file.read_text()
            routes.update(ROW.findall(text))
            routes.update(("GET", path) for path in GET_ROW.findall(text))
    return routes


class OpenApi(unittest.TestCase):
    def test_every_route_that_is_answered_is_in_the_file_and_none_more(self):
        self.assertEqual(sorted(answered() - documented()), [], "answered, but not in docs/openapi.yaml")
        self.assertEqual(sorted(documented() - answered()), [], "in docs/openapi.yaml, but not answered")

    def test_every_reference_leads_somewhere(self):
        text = (SOURCE / "docs/openapi.yaml").read_text()
        kinds = re.split(r"\n  (securitySchemes|parameters|schemas|responses):\n", text[text.index("\ncomponents:\n"):])
        names = {kind: set(re.findall(r"(?m)^    (\w+):", body)) for kind, body in zip(kinds[1::2], kinds[2::2])}
        for kind, name in re.findall(r"#/components/(\w+)/(\w+)", text):
            self.assertIn(name, names[kind])


if __name__ == "__main__":
    unittest.main()
