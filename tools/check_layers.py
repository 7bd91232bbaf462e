#!/usr/bin/env python3
"""Holds every #include under src/weft to tools/layers.toml, and every *_test.cc to a CMake target.

usage: check_layers.py [SOURCE_DIR]
Prints one line for each fault and exits 1, or prints a count and exits 0.
"""
import pathlib
import re
import sys
import tomllib

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
modules = tomllib.loads((root / "tools/layers.toml").read_text())["modules"]
include = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.M)
STANDARD = re.compile(r"^[a-z_0-9]+$|^(sys|arpa|netinet|linux|net)/|^(fcntl|unistd|pthread|poll|signal|sched|immintrin)\.h$")
faults, edges = [], 0


def third_party_ok(module, path, header):
    rules = modules[module]
    allowed = rules.get("in_headers", []) if path.suffix == ".h" and not path.stem.endswith("-inl") else rules.get("third_party", [])
    if module != "testing" and path.stem.endswith(("_test", "_bench")):
        allowed = rules.get("third_party", []) + ["gtest", "gmock", "benchmark", "fmt", "boost/json", "hwy"]
    return any(header == a or header.startswith(a + "/") or header.startswith(a + ".") for a in allowed)


for path in sorted((root / "src/weft").rglob("*")):
    if path.suffix not in (".h", ".cc"):
        continue
    module = path.relative_to(root / "src/weft").parts[0]
    where = path.relative_to(root)
    if module not in modules:
        faults.append(f"{where}: module `{module}` has no row in tools/layers.toml")
        continue
    is_test = path.stem.endswith(("_test", "_bench"))
    for bracket, header in include.findall(path.read_text()):
        edges += 1
        if header.startswith("weft/") and header != "weft/weft.h":
            other = header.split("/")[1]
            allowed = [module, *modules[module]["deps"], *(["testing"] if is_test else [])]
            if other not in allowed:
                faults.append(f"{where}: includes {header}, but `{module}` may not depend on `{other}`")
            elif "/internal/" in header and other != module:
                faults.append(f"{where}: includes {header}, which is internal to `{other}`")
        elif not STANDARD.match(header) and not third_party_ok(module, path, header):
            faults.append(f"{where}: includes {header}, which `{module}` may not{' in a header' if path.suffix == '.h' else ''}")

registered = {}
for listing in root.rglob("CMakeLists.txt"):
    if "build" not in listing.relative_to(root).parts[:1]:
        registered[listing.parent] = listing.read_text()
for path in sorted([*(root / "src").rglob("*_test.cc"), *(root / "tests").rglob("*_test.cc")]):
    if path.name not in registered.get(path.parent, ""):
        faults.append(f"{path.relative_to(root)}: in no target of {path.parent.relative_to(root)}/CMakeLists.txt")

for fault in faults:
    print(fault)
print(f"{edges} includes in {len(modules)} modules, {len(faults)} faults")
sys.exit(1 if faults else 0)
