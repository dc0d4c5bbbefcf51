"""Writes what the three programs are made of: sbom.cdx.json (CycloneDX) and THIRD-PARTY.txt (licences).

    python3 docs/deploy/components.py FOLDER

Read from Cargo.lock, cargo metadata and the sources that cargo has fetched.
"""

import json
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ["lock-server", "fenced-store", "fence"]
LICENCE_FILES = ("licen", "copying", "notice", "unlicense")


def cargo(*args: str) -> str:
    return subprocess.run(["cargo", *args], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def linked() -> set[tuple[str, str]]:
    """Name and version of every package that is linked into a program."""
    chosen = [word for program in PROGRAMS for word in ("-p", program)]
    lines = cargo("tree", "--locked", "--no-default-features", *chosen, "-e", "normal", "--prefix", "none", "-f", "{p}")
    words = [line.split() for line in lines.splitlines() if line.strip()]
    return {(name, version.removeprefix("v")) for name, version, *_ in words}


def packages() -> list[dict]:
    found = linked()
    metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1"))
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    hashes = {(entry["name"], entry["version"]): entry.get("checksum") for entry in lock}
    depends = {node["id"]: node["dependencies"] for node in metadata["resolve"]["nodes"]}
    chosen = [package for package in metadata["packages"] if (package["name"], package["version"]) in found]
    for package in chosen:
        package["sha256"] = hashes[package["name"], package["version"]]
        package["depends"] = depends[package["id"]]
    return sorted(chosen, key=lambda package: (package["name"], package["version"]))


def purl(package: dict) -> str:
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: dict) -> dict:
    made = {
        "type": "application" if package["name"] in PROGRAMS else "library",
        "bom-ref": purl(package),
        "name": package["name"],
        "version": package["version"],
        "purl": purl(package),
    }
    if package["license"]:
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if package["sha256"]:
        made["hashes"] = [{"alg": "SHA-256", "content": package["sha256"]}]
    return made


def sbom(chosen: list[dict], version: str) -> dict:
    names = {package["id"]: purl(package) for package in chosen}
    depends = [
        {"ref": purl(package), "dependsOn": sorted({names[id] for id in package["depends"] if id in names})}
        for package in chosen
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "fencepost", "version": version}},
        "components": [component(package) for package in chosen],
        "dependencies": depends,
    }


def licence_texts(package: dict) -> list[str]:
    folder = pathlib.Path(package["manifest_path"]).parent
    files = [path for path in folder.iterdir() if path.is_file() and path.name.lower().startswith(LICENCE_FILES)]
    return [path.read_text(errors="replace").strip() for path in sorted(files)]


def notices(chosen: list[dict]) -> str:
    """One chapter a text, under the names of all packages that have it."""
    owners: dict[str, list[str]] = {}
    for package in chosen:
        # Ours are under the LICENSE of this repository.
        if package["source"] is None:
            continue
        name = f"{package['name']} {package['version']} ({package['license']})"
        texts = licence_texts(package) or ["The package has no licence file; its licence is named above."]
        for text in texts:
            owners.setdefault(text, []).append(name)
    chapters = ["\n".join([*names, "", text, ""]) for text, names in owners.items()]
    return f"\n{'=' * 100}\n\n".join(chapters)


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    chosen = packages()
    version = next(package["version"] for package in chosen if package["name"] == "fence")
    out.mkdir(parents=True, exist_ok=True)
    (out / "sbom.cdx.json").write_text(json.dumps(sbom(chosen, version), indent=1) + "\n")
    (out / "THIRD-PARTY.txt").write_text(notices(chosen))
    print(f"{len(chosen)} packages")


main()
