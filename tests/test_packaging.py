"""What a user gets from pip: the sdist, the wheel built from it, the installed package."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import scrapy_smoothpool

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "scrapy_smoothpool"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
DIST_INFO = f"scrapy_smoothpool-{scrapy_smoothpool.__version__}.dist-info"


def run(*arguments: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run("-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        # Python before 3.11.4 knows no filters; later ones warn where none is named.
        tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    [unpacked] = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as an installer builds it from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    run("-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=sdist)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return HeaderParser().parsestr(archive.read(f"{DIST_INFO}/METADATA").decode())


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", "--target", folder, wheel, cwd=folder)
    return folder


def installed(site: Path, code: str) -> Any:
    """Run *code* with the installed wheel in front; return what it leaves in ``result``."""
    # -I: neither the current folder nor PYTHONPATH, either of which may be the checkout.
    before = f"import json, sys\nsys.path.insert(0, {str(site)!r})"
    return json.loads(run("-I", "-c", f"{before}\n{code}\nprint(json.dumps(result))", cwd=site))


def sources(pattern: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob(pattern)}


@pytest.mark.parametrize("pattern", ["*.py", "*.lua", "py.typed"])
def test_wheel_holds_every(pattern: str, files: set[str]) -> None:
    assert sources(pattern)
    assert sources(pattern) <= files


def test_wheel_holds_nothing_but_the_package(files: set[str]) -> None:
    assert {name.partition("/")[0] for name in files} == {"scrapy_smoothpool", DIST_INFO}
    kinds = {Path(name).suffix for name in files if name.startswith("scrapy_smoothpool/")}
    assert kinds == {".py", ".lua", ".typed"}


def test_wheel_carries_its_licence(wheel: Path, metadata: Message) -> None:
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata.get_all("License-File") == ["LICENSE"]
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{DIST_INFO}/licenses/LICENSE")
    assert text == (ROOT / "LICENSE").read_bytes()


def test_metadata_tells_what_it_is(metadata: Message) -> None:
    assert metadata["Name"] == "scrapy-smoothpool"
    assert metadata["Version"] == scrapy_smoothpool.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    classifiers = metadata.get_all("Classifier") or []
    assert "Framework :: Scrapy" in classifiers
    assert "Typing :: Typed" in classifiers
    assert metadata.get_payload() == (ROOT / "README.md").read_text("utf-8")


def test_it_depends_on_scrapy_redis_and_twisted_only(metadata: Message) -> None:
    required = metadata.get_all("Requires-Dist") or []
    always = [line for line in required if ";" not in line]
    names = [re.match(r"[\w.-]+", line)[0] for line in always]
    assert sorted(names) == ["redis", "scrapy", "twisted"]
    assert all("extra ==" in line for line in required if line not in always)


def test_lower_bounds_only_and_tox_runs_with_them() -> None:
    bounds = PROJECT["dependencies"]
    assert all(re.fullmatch(r"[a-z]+>=[\d.]+", bound) for bound in bounds), bounds
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini", "utf-8")
    pins = tox["testenv:lowest"]["deps"].split()
    assert pins == [bound.replace(">=", "==") for bound in bounds]


def test_sdist_holds_what_it_takes_to_test_it(sdist: Path) -> None:
    tests = {path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py")}
    assert all((sdist / path).is_file() for path in tests)
    for name in ("Makefile", "pyproject.toml", "tox.ini", "demo_spider/run_demo.py"):
        assert (sdist / name).is_file(), name


def test_installed_package_offers_all_its_names(site: Path) -> None:
    result = installed(
        site,
        "import scrapy_smoothpool as package\n"
        "result = [package.__file__, package.__version__, sorted(package.__all__),\n"
        "          [name for name in package.__all__ if getattr(package, name, None) is None]]",
    )
    file, version, names, unresolved = result
    assert Path(file).is_relative_to(site)
    assert version == scrapy_smoothpool.__version__
    assert names == sorted(scrapy_smoothpool.__all__)
    assert unresolved == []


def test_every_installed_module_can_be_imported(site: Path) -> None:
    result = installed(
        site,
        "import importlib, pkgutil, scrapy_smoothpool as package\n"
        "found = pkgutil.walk_packages(package.__path__, 'scrapy_smoothpool.')\n"
        "result = [importlib.import_module(module.name).__file__ for module in found]",
    )
    assert {Path(file).relative_to(site).as_posix() for file in result} == (
        sources("*.py") - {"scrapy_smoothpool/__init__.py"}
    )


def test_installed_lua_scripts_load(site: Path) -> None:
    result = installed(
        site,
        "from scrapy_smoothpool.store.scripts import SCRIPTS\n"
        "result = {name: script.text for name, script in SCRIPTS.items()}",
    )
    assert result == {path.stem: path.read_text("utf-8") for path in PACKAGE.rglob("*.lua")}


@pytest.mark.parametrize(
    "module", ["strategies.smooth_wrr", "strategies.tournament", "proxy", "parsing", "health"]
)
def test_pure_part_alone_brings_no_framework_along(site: Path, module: str) -> None:
    result = installed(
        site,
        f"import scrapy_smoothpool.{module}\n"
        "result = sorted({name.partition('.')[0] for name in sys.modules})",
    )
    assert "scrapy_smoothpool" in result
    assert not {"scrapy", "twisted", "redis"} & set(result)
