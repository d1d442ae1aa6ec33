"""Where the trials and the queue of a study are kept: one address, one of Optuna's storages behind it.

    a folder               SQLite, search.db in the folder; processes of one machine
    journal:PATH           a file that is only appended to, on a disk that all machines share; also a path that ends in
                           .journal or .log
    postgresql://...       a database server; other addresses of SQLAlchemy as well
    grpc://host:port       Optuna's proxy before a database server

A server may go away for a while: calls are tried again until it is back, or until `patience` is spent.
"""

from __future__ import annotations

import abc
import importlib
import json
import os
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
import sqlalchemy.event
import sqlalchemy.exc
from optuna.exceptions import OptunaError, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalFileSymlinkLock
from optuna.trial import TrialState

from htaf._errors import HtafError, first_line
from htaf._files import check_place

PATIENCE = 600.0  # seconds for which a store may be away
LONGEST_PAUSE = 5.0  # seconds between two tries; must stay well below the time-out of a lease
DEADLINE = 60.0  # seconds of one call of the proxy; Optuna's client sets none and would wait for ever
CONNECT = 10.0  # seconds in which a server must answer for the first time
SEARCH = "search.db"


class StoreError(HtafError):
    """A store that cannot be used: says its address, what was expected and what came."""


def open_store(address: str, *, patience: float = PATIENCE, new: bool = True) -> Store:
    """The store at an address.

    Args:
        address: see above.
        patience: seconds for which a store that was there may be away.
        new: make a folder or a file that is not there yet.

    Raises:
        StoreError: no such kind of address, no answer, or something else lies there.
    """
    _expect_place(address, new)
    return Store(address, patience)  # pyright: ignore[reportAbstractUsage] - the methods are set below


def _expect_place(address: str, new: bool) -> None:
    if not address.strip() or not address.isprintable():
        raise StoreError(f"--store: expected {_KINDS}, got {address!r}")
    if "://" in address:
        return
    if is_folder(address) and Path(address).is_file():
        raise StoreError(f"--store: expected {_KINDS}, {address} is a file")
    file = _journal_path(address) if _is_journal(address) else Path(address) / SEARCH
    check_place(file, "--store")
    if not new and not file.exists():
        raise StoreError(
            f"there is no store at {address}: expected {file}, which htaf study PLAN --store {address} makes"
        )


_KINDS = "a folder, journal:PATH, postgresql://user@host/database, or grpc://host:port"


def is_folder(address: str) -> bool:
    """Whether an address is that of a folder with a SQLite file."""
    return "://" not in address and not _is_journal(address)


def shown(address: str) -> str:
    """An address without its password."""
    if "://" not in address or "@" not in address:
        return address
    scheme, _, rest = address.partition("://")
    who, _, where = rest.rpartition("@")
    return f"{scheme}://{who.partition(':')[0]}{':***' if ':' in who else ''}@{where}"


def absolute(address: str) -> str:
    """An address that means the same in every working folder."""
    if "://" in address:
        return address
    if _is_journal(address):
        return f"journal:{_journal_path(address)}"
    return str(Path(address).absolute())


class Store(BaseStorage):
    """One of Optuna's storages, whose calls are tried again while it is away.

    Everything that Optuna keeps goes through here, so `calls` counts what a study asks of its store, by method.
    """

    def __init__(self, address: str, patience: float = PATIENCE) -> None:
        self.address, self.patience = absolute(address), patience
        self.calls: Counter[str] = Counter()
        self.retries = 0
        self.tell: Callable[[str], None] = lambda note: None  # is told when the store has been away for about a second
        self._counting = threading.Lock()
        with quiet():
            self._inner = _opened(self.address)

    def __str__(self) -> str:
        return shown(self.address)

    def call(self, name: str, *args: Any, **named: Any) -> Any:
        """A call of Optuna's storage, again while it is away; the pauses grow from 0.1 s to 5 s.

        Raises:
            StoreError: away for longer than `patience`, or an error that no second try mends. KeyError,
            UpdateFinishedTrialError, DuplicatedStudyError: as Optuna's storages raise them.
        """
        with self._counting:
            self.calls[name] += 1
        begun, pause, tried = time.monotonic(), 0.1, 0
        while True:
            try:
                return getattr(self._inner, name)(*args, **named)
            except UpdateFinishedTrialError:
                # the answer to an earlier try may have been lost: what it wrote is there
                if tried and name == "set_trial_state_values" and self.get_trial(args[0]).state == _state(args, named):
                    return True
                raise
            except (StorageInternalError, sqlalchemy.exc.SQLAlchemyError, OSError, ValueError) as error:
                self._pause_for(error, begun, pause)
            except Exception as error:
                if not _is_rpc(error):
                    raise
                self._pause_for(error, begun, pause)
            with self._counting:
                self.retries += 1
            pause, tried = min(2 * pause, LONGEST_PAUSE), tried + 1

    def _pause_for(self, error: Exception, begun: float, pause: float) -> None:
        if not _may_pass(error):
            if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
                raise error  # of Optuna: a distribution that differs
            raise StoreError(f"the store {self} cannot be used: {_reason(error)}") from None
        spent = time.monotonic() - begun
        if spent + pause > self.patience:
            raise StoreError(
                f"the store {self} has not answered for {spent:.0f} s ({_reason(error)}); what is finished is kept: "
                "give the same command again when it is back"
            ) from None
        if pause == 0.8:
            self.tell(f"the store {self} does not answer ({_reason(error)}); tried again for {self.patience:.0f} s")
        time.sleep(pause * random.uniform(0.5, 1.0))


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: Store, *args: Any, **named: Any) -> Any:
        return self.call(name, *args, **named)

    method.__name__, method.__doc__ = name, getattr(BaseStorage, name).__doc__
    return method


# every method that Optuna asks of a storage, today's and later ones
for _name in BaseStorage.__abstractmethods__:
    setattr(Store, _name, _forwarded(_name))
abc.update_abstractmethods(Store)


def _state(args: Sequence[Any], named: Mapping[str, Any]) -> TrialState:
    return named["state"] if "state" in named else args[1]


class quiet:
    """Optuna without its chatter while the block runs."""

    def __enter__(self) -> None:
        self._before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)

    def __exit__(self, *_: object) -> None:
        optuna.logging.set_verbosity(self._before)


def _is_journal(address: str) -> bool:
    return address.startswith("journal:") or ("://" not in address and address.endswith((".journal", ".log")))


def _journal_path(address: str) -> Path:
    return Path(address.removeprefix("journal:").removeprefix("//")).absolute()


def _opened(address: str) -> BaseStorage:
    """The storage at an address, after one answer from it."""
    try:
        if _is_journal(address):
            return JournalStorage(Journal(_journal_path(address)))
        if address.startswith("grpc://"):
            return _proxy(address)
        storage = get_storage(_made(address))
        storage.get_all_studies()
        return storage
    except StoreError:
        raise
    except ModuleNotFoundError as error:
        raise StoreError(f"{shown(address)} needs the package {error.name}: pip install 'htaf[scale]'") from None
    except ImportError:
        raise StoreError(f"{shown(address)} needs a driver of its database: pip install 'htaf[scale]'") from None
    except (OptunaError, sqlalchemy.exc.SQLAlchemyError, OSError, ValueError, KeyError, AssertionError) as error:
        raise StoreError(f"the store {shown(address)} cannot be used: {_reason(error)}") from None


def _made(address: str) -> RDBStorage:
    """The database, whose tables another process may be making at the same moment."""
    for _ in range(9):
        try:
            return _database(address)
        except sqlalchemy.exc.DBAPIError as error:
            known = ("already exists", "unique constraint", "duplicate key", "database is locked")
            if not any(words in str(error).lower() for words in known):
                raise
        except StorageInternalError:  # around one of them
            pass
        time.sleep(random.uniform(0.1, 0.5))
    return _database(address)


def _database(address: str) -> RDBStorage:
    if is_folder(address):
        folder = Path(address)
        folder.mkdir(parents=True, exist_ok=True)
        return _sqlite(f"sqlite:///{folder / SEARCH}")
    scheme, _, rest = address.partition("://")
    if scheme == "sqlite":
        return _sqlite(address)
    if scheme in ("postgresql", "postgres"):  # SQLAlchemy's own choice of a driver changed with its versions
        importlib.import_module("psycopg")
        timeout = {"connect_timeout": int(CONNECT)}
        return RDBStorage(f"postgresql+psycopg://{rest}", {"pool_pre_ping": True, "connect_args": timeout})
    try:
        sqlalchemy.make_url(address).get_dialect()
    except sqlalchemy.exc.ArgumentError:
        raise StoreError(f"--store: expected {_KINDS}, got {shown(address)!r}") from None
    return RDBStorage(address, {"pool_pre_ping": True})


def _sqlite(url: str) -> RDBStorage:
    """SQLite whose transactions take the write lock when they begin.

    Optuna reads a trial's state and then writes it. SELECT ... FOR UPDATE makes that one step on a server; SQLite has
    none, and two processes could both claim a trial.
    """
    storage = RDBStorage(url, {"connect_args": {"timeout": 60}})

    @sqlalchemy.event.listens_for(storage.engine, "connect")
    def _manual(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # sqlite3 would begin a transaction itself, only before the first write

    @sqlalchemy.event.listens_for(storage.engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    storage.engine.dispose()  # connections from before
    return storage


def _proxy(address: str) -> BaseStorage:
    import grpc
    from optuna.storages import GrpcStorageProxy
    from optuna.storages._grpc.auto_generated import api_pb2_grpc
    from optuna.storages._grpc.client import GrpcClientCache

    host, _, port = address.removeprefix("grpc://").rstrip("/").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise StoreError(f"--store: expected grpc://host:port, got {address!r}")

    class Deadline(grpc.UnaryUnaryClientInterceptor):  # pyright: ignore[reportUntypedBaseClass]
        def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
            return continuation(client_call_details._replace(timeout=DEADLINE), request)

    class Proxy(GrpcStorageProxy):
        def _setup(self) -> None:
            super()._setup()
            self._stub = api_pb2_grpc.StorageServiceStub(grpc.intercept_channel(self._channel, Deadline()))
            self._cache = GrpcClientCache(self._stub)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        proxy = Proxy(host=host.strip("[]") if host.count(":") < 2 else host, port=int(port))
    try:
        proxy.wait_server_ready(timeout=CONNECT)
        proxy.get_all_studies()
    except ConnectionError:
        raise StoreError(f"the store {address} does not answer within {CONNECT:.0f} s: is the proxy started?") from None
    except grpc.RpcError as error:
        raise StoreError(f"the store {address} cannot be used: {_reason(error)}") from None
    return proxy


class Journal(JournalFileBackend):
    """Optuna's journal file, whose last line is mended before the next one is written.

    A full disk or a machine that lost its power can leave half a line, which nobody has read: Optuna would write the
    next record behind it, and then no reader could go on.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise StoreError(f"--store: expected a journal file, {path} is a folder")
        self._place = path
        self._guard = _lock(path)
        super().__init__(str(path), self._guard)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        self._guard.acquire()
        try:
            with open(self._place, "rb+") as file:
                size = _whole_lines(file)
                file.truncate(size)
                file.seek(size)
                try:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)
                    raise
        finally:
            self._guard.release()


def _whole_lines(file: Any) -> int:
    """Bytes up to the end of the last whole line."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _lock(path: Path) -> JournalFileSymlinkLock | JournalFileOpenLock:
    """A link, which is safe on NFS of every version; a new file where links are not allowed. They exclude each
    other."""
    probe = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.link")
    try:
        os.symlink(path, probe)
        probe.unlink()
    except (OSError, NotImplementedError):
        return JournalFileOpenLock(str(path))
    return JournalFileSymlinkLock(str(path))


def _is_rpc(error: BaseException) -> bool:
    return hasattr(error, "code") and any(kind.__name__ == "RpcError" for kind in type(error).__mro__)


def _may_pass(error: BaseException) -> bool:
    """Whether an error may be gone at a later try."""
    if _is_rpc(error):
        code = error.code()  # pyright: ignore[reportAttributeAccessIssue]
        # UNKNOWN: the proxy's own store raised, most often because it is away
        return code.name in (
            "UNAVAILABLE",
            "DEADLINE_EXCEEDED",
            "UNKNOWN",
            "RESOURCE_EXHAUSTED",
            "ABORTED",
            "CANCELLED",
        )
    cause = error.__cause__ or error.__context__ if isinstance(error, StorageInternalError) else error
    if isinstance(cause, sqlalchemy.exc.DBAPIError):
        return cause.connection_invalidated or isinstance(
            cause, sqlalchemy.exc.OperationalError | sqlalchemy.exc.InterfaceError | sqlalchemy.exc.InternalError
        )
    return isinstance(cause, sqlalchemy.exc.TimeoutError | OSError | sqlalchemy.exc.PendingRollbackError)


def _reason(error: BaseException) -> str:
    """One line on an error of a storage, without Optuna's frame around it."""
    if _is_rpc(error):
        return f"{error.code().name}: {first_line(Exception(error.details()))}"  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    return first_line(getattr(error, "orig", None) or error)
