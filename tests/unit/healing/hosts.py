"""Hosts on one machine: network namespaces on a switch, whose links can be cut."""

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Generator

import pytest

CLONE_NEWNET = 0x40000000
"""The kind of a namespace of networks, for Linux."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)


class Hosts:
    """So many hosts; their addresses go from 10.77.0.1 on.

    name: the beginning of the names of the namespaces; count: how many.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self.addresses = [f"10.77.0.{number + 1}" for number in range(count)]

    def plug_in(self) -> None:
        """Make the namespaces, and a switch in one of its own."""
        switch = f"{self._name}-switch"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, address in enumerate(self.addresses):
            host, port = f"{self._name}-{number}", f"port{number}"
            _ip("netns", "add", host)
            _ip("-n", host, "link", "add", "wire", "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", host, "address", "add", f"{address}/24", "dev", "wire")
            for device in ("wire", "lo"):
                _ip("-n", host, "link", "set", device, "up")

    def namespace(self, number: int) -> str:
        """The file of a host's namespace, for `enter`."""
        return f"/var/run/netns/{self._name}-{number}"

    def cut(self, number: int) -> None:
        """Cut the link of a host: it sends nothing any more, not even that it is gone."""
        _ip("-n", f"{self._name}-switch", "link", "set", f"port{number}", "down")

    def remove(self) -> None:
        """Remove the namespaces, as far as they were made."""
        for each in (*range(self._count), "switch"):
            with contextlib.suppress(subprocess.SubprocessError):
                _ip("netns", "delete", f"{self._name}-{each}")


def enter(namespace: str) -> None:
    """Moves this process to a host."""
    with open(namespace, "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"can't enter {namespace}")


@contextlib.contextmanager
def hosts(count: int) -> Generator[Hosts]:
    """So many hosts. Skips the test where the system makes no network namespaces."""
    made = Hosts(f"jaxpp-{os.getpid()}", count)
    try:
        if shutil.which("ip") is None:
            pytest.skip("no network namespaces: there is no `ip`")
        try:
            made.plug_in()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces: {error.stderr.strip()}")
        yield made
    finally:
        made.remove()
