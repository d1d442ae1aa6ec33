"""A server of the Hugging Face hub's protocol on 127.0.0.1: as much as its client needs to make, fill and read folders.

No package is one that takes uploads, so this is one. It keeps everything in memory; large files go by Git LFS.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest


@dataclass
class Repository:
    """A folder at the hub: its files at each commit, and the commit of each branch."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Make these the files of a branch; gives the commit."""
        said = [len(self.commits), sorted((name, hashlib.sha256(data).hexdigest()) for name, data in files.items())]
        sha = hashlib.sha1(json.dumps(said).encode()).hexdigest()
        self.commits[sha], self.branches[branch] = dict(files), sha
        return sha

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches.get(revision, revision)]


class Hub:
    """What the server holds, and the requests that it had, "METHOD path"."""

    def __init__(self) -> None:
        self.repositories, self.large = dict[str, Repository](), dict[str, bytes]()
        self.asked, self.endpoint = list[str](), ""
        self.stop: Callable[[], None] = lambda: None  # it answers no more

    def put(self, name: str, files: dict[str, bytes]) -> str:
        """A folder that a stranger put there; gives its commit."""
        made = self.repositories.setdefault(name, Repository())
        return made.commit(files)

    def put_folder(self, name: str, folder: Path) -> str:
        return self.put(name, {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()})


def _is_large(path: str) -> bool:
    return path.endswith(".safetensors")


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _digest(path: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if _is_large(path) else _blob(data)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(
        self, status: int = 200, body: Any = None, headers: dict[str, str] | None = None, data: bytes | None = None
    ) -> None:
        sent = data if data is not None else json.dumps({} if body is None else body).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(sent))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, {"error": code}, {"X-Error-Code": code, "X-Error-Message": code})

    def _served(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        words = path.strip("/").split("/")
        if self.command == "POST" and words[:2] == ["api", "repos"]:
            return self._create(json.loads(body))
        if words[:2] == ["api", "validate-yaml"]:
            return self._answer(body={"warnings": [], "errors": []})
        if self.command == "PUT" and words[0] == "large":
            self.hub.large[words[1]] = body
            return self._answer()
        if words[:2] == ["api", "models"]:
            return self._of_model("/".join(words[2:4]), words[4:], body)
        if words[2:5] == ["info", "lfs", "objects"]:
            return self._large_files(json.loads(body))
        if len(words) > 4 and words[2] == "resolve":
            return self._file("/".join(words[:2]), words[3], "/".join(words[4:]))
        return self._refuse(404, "EntryNotFound")

    do_GET = do_HEAD = do_POST = do_PUT = _served

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if "Authorization" not in self.headers:
            return self._refuse(401, "Unauthorized")
        url = {"url": f"{self.hub.endpoint}/{name}"}
        if name in self.hub.repositories:
            return self._answer(409, {"error": "You already created this model repo"} | url)
        made = self.hub.repositories[name] = Repository(private=asked.get("visibility") == "private")
        made.commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        return self._answer(body=url)

    def _of_model(self, name: str, words: list[str], body: bytes) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and "Authorization" not in self.headers):
            return self._refuse(404, "RepoNotFound")
        verb, revision = (*words, "revision", "main")[:2] if words else ("revision", "main")
        if verb == "branch":
            if revision in repository.branches:
                return self._refuse(409, "Conflict")
            repository.branches[revision] = repository.branches["main"]
            return self._answer()
        sha = repository.branches.get(revision, revision)
        if sha not in repository.commits:
            return self._refuse(404, "RevisionNotFound")
        files = repository.commits[sha]
        if verb == "revision":
            listed = [{"rfilename": path} for path in files]
            about = {"id": name, "sha": sha, "private": repository.private, "siblings": listed, "tags": []}
            return self._answer(body=about)
        if verb == "tree":
            return self._answer(body=[self._listed(path, data) for path, data in files.items()])
        if verb == "preupload":
            wanted = [one["path"] for one in json.loads(body)["files"]]
            modes = [
                {"path": path, "uploadMode": "lfs" if _is_large(path) else "regular", "shouldIgnore": False,
                 "oid": _digest(path, files[path]) if path in files else None}
                for path in wanted
            ]  # fmt: skip
            return self._answer(body={"files": modes})
        assert verb == "commit"
        files = dict(files)
        for line in body.splitlines():
            step = json.loads(line)
            value = step["value"]
            if step["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif step["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            elif step["key"] == "deletedFile":
                del files[value["path"]]
        made = repository.commit(files, revision)
        url = f"{self.hub.endpoint}/{name}/commit/{made}"
        return self._answer(body={"success": True, "commitOid": made, "commitUrl": url, "hookOutput": ""})

    def _listed(self, path: str, data: bytes) -> dict[str, Any]:
        found = {"type": "file", "path": path, "size": len(data), "oid": _blob(data)}
        if _is_large(path):
            found["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return found

    def _large_files(self, asked: dict[str, Any]) -> None:
        objects = [
            one | {"actions": {"upload": {"href": f"{self.hub.endpoint}/large/{one['oid']}"}}}
            for one in asked["objects"]
        ]
        self._answer(body={"transfer": "basic", "objects": objects})

    def _file(self, name: str, revision: str, path: str) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            return self._refuse(404, "RepoNotFound")
        sha = repository.branches.get(revision, revision)
        data = repository.commits.get(sha, {}).get(path)
        if data is None:
            return self._refuse(404, "EntryNotFound")
        return self._answer(data=data, headers={"X-Repo-Commit": sha, "ETag": f'"{_digest(path, data)}"'})


@contextlib.contextmanager
def serving(cache: Path) -> Iterator[Hub]:
    """The client of huggingface_hub asks this server while the block runs, logged in, with a cache of its own."""
    from huggingface_hub import constants

    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    hub.stop = stop
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", hub.endpoint)
        patch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        patch.setattr(constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setenv("HF_TOKEN", "hf_made")
        try:
            yield hub
        finally:
            stop()
