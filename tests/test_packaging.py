"""The build without a compiler and without the extension; the kernels of every instruction set, emulated where needed.

What an emulated or cross-compiled test needs (Debian: g++-aarch64-linux-gnu, qemu-user) may be missing, but not in CI.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates processors of x86_64 on x86_64 only")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into ELF objects")


def tool(name: str) -> str:
    """The path of a program, from this Python's environment before PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        (pytest.fail if IN_CI else pytest.skip)(f"{name} is not installed")
    return found  # pyright: ignore[reportReturnType]


def run(*command: str | Path, env: dict[str, str] | None = None, fails: bool = False) -> str:
    """stdout and stderr of a command that must end well, or with `fails` must not."""
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert (done.returncode != 0) == fails, done.stdout
    return done.stdout


def environment(**changes: str) -> dict[str, str]:
    """This one's, without what would choose a compiler or leave out the extension."""
    return {k: v for k, v in os.environ.items() if k not in {"CC", "CXX", "HTAF_NO_EXTENSION"}} | changes


def wheel(to: Path, env: dict[str, str], *settings: str, fails: bool = False) -> str:
    pins = ROOT / "constraints.txt"
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--build-constraint", pins, "--wheel-dir", to)
    return run(*pip, *(f"--config-settings={one}" for one in settings), ROOT, env=env, fails=fails)


def configure(to: Path, *arguments: str, env: dict[str, str] | None = None, fails: bool = False) -> str:
    ninja = f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"
    return run(tool("cmake"), "-G", "Ninja", "-S", ROOT, "-B", to, ninja, *arguments, env=env, fails=fails)


def build_selftest(to: Path, *arguments: str) -> Path:
    configure(to, "-DHTAF_SELFTEST=ON", *arguments)
    run(tool("cmake"), "--build", to)
    return to / "selftest"


@pytest.fixture(scope="module")
def selftest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of csrc/selftest.cpp for this machine."""
    return build_selftest(tmp_path_factory.mktemp("selftest"))


@pytest.mark.parametrize("changes", [{"PATH": ""}, {"CXX": "/nonexistent/g++"}], ids=["PATH", "CXX"])
def test_configuring_without_a_compiler_says_so(tmp_path: Path, changes: dict[str, str]) -> None:
    said = configure(tmp_path, env=environment(**changes), fails=True)
    assert "htaf: no C++ compiler found" in said


@pytest.mark.slow
def test_a_wheel_without_the_extension_needs_no_compiler(tmp_path: Path) -> None:
    wheel(tmp_path, environment(HTAF_NO_EXTENSION="true", PATH=str(tmp_path)))  # the sdist's test says 1
    (built,) = tmp_path.glob("*.whl")
    assert built.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(built).namelist()
    assert "htaf/core/kernels/__init__.py" in names
    assert not [name for name in names if "_native" in name and not name.endswith((".py", ".pyi"))]


@pytest.mark.slow
def test_the_sdist_holds_what_the_extension_is_built_from(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, env=environment(HTAF_NO_EXTENSION="1"))
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {f"csrc/{path.name}" for path in (ROOT / "csrc").iterdir()}
    assert len(sources) > 5
    assert sources | {"CMakeLists.txt", "pyproject.toml", "src/htaf/__init__.py", "LICENSE"} <= names


@LINUX
@pytest.mark.slow
def test_kernels_share_no_function_with_other_processors(selftest: Path) -> None:
    """A linker keeps one copy of a weak function: it must not be one that was compiled for AVX-512."""
    objects = [*selftest.parent.glob("CMakeFiles/p*_*/csrc/*.cpp.o")]
    assert len(objects) > 4
    harmless = {"DW.ref.__gxx_personality_v0", "__clang_call_terminate"}  # an address; a call that ends the program
    for path in objects:
        exported = {
            line.split()[0] for line in run(tool("nm"), "-P", "--extern-only", "--defined-only", path).splitlines()
        }
        name, table = path.parts[-3].partition("_")[2].removesuffix(".dir"), path.name.removesuffix(".cpp.o")
        # the table htaf::avx2, or htaf::for_avx2::binary of csrc/binary.cpp
        parts = ["htaf", name] if table == "kernels" else ["htaf", f"for_{name}", table]
        assert exported - harmless == {"_ZN" + "".join(f"{len(part)}{part}" for part in parts) + "E"}, path


def check_kernels(*command: str | Path) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    errors = [line for line in done.stderr.splitlines() if "TCG doesn't support requested feature" not in line]
    assert done.returncode == 0, "\n".join([line for line in lines if not line.startswith("ok ")] + errors)
    assert lines[-1].startswith("0 failures; ran: ")


@pytest.mark.slow
def test_the_kernels_of_this_processor(selftest: Path) -> None:
    check_kernels(selftest)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and the extension, built with AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = tmp_path_factory.mktemp("sanitized")
    options = ("cmake.define.HTAF_SELFTEST=ON", "cmake.define.HTAF_SANITIZE=ON")
    wheel(folder, environment(), f"build-dir={folder}", *options)
    return folder


@LINUX
@pytest.mark.slow
def test_the_kernels_under_sanitizers(sanitized: Path) -> None:
    """What is read or written beyond an allocation, and what C++ leaves undefined: `make sanitize`."""
    check_kernels(sanitized / "selftest")


# tests with another extension than the one that is installed
WITH_EXTENSION = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("htaf.core.kernels._native", sys.argv[1])
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


@LINUX
@pytest.mark.slow
def test_packed_models_under_sanitizers(sanitized: Path) -> None:
    """That kernels read no memory which was freed: PyTorch's comes from the sanitizer's allocator."""
    (extension,) = sanitized.glob("_native*.so")
    libraries = [run(tool("c++"), f"-print-file-name=lib{name}.so").strip() for name in ("asan", "ubsan", "stdc++")]
    env = environment(LD_PRELOAD=":".join(libraries), ASAN_OPTIONS="detect_leaks=0", PYTHONMALLOC="malloc")
    tests = ("tests/packed/test_memory.py",)
    how = ("-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist")
    run(sys.executable, "-c", WITH_EXTENSION, extension, *how, *tests, env=env)


@X86
@pytest.mark.slow
@pytest.mark.parametrize(("cpu", "sets"), [("Nehalem", ["portable"]), ("Haswell", ["avx2", "portable"])])
def test_the_kernels_of_another_processor(selftest: Path, cpu: str, sets: list[str]) -> None:
    check_kernels(tool("qemu-x86_64"), "-cpu", cpu, selftest, *sets)


@LINUX
@pytest.mark.slow
def test_the_kernels_of_arm(tmp_path: Path) -> None:
    compiler = tool("aarch64-linux-gnu-g++")
    cross = ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={compiler}")
    emulator = (tool("qemu-aarch64"), "-L", "/usr/aarch64-linux-gnu")
    check_kernels(*emulator, build_selftest(tmp_path, *cross), "neon", "portable")
