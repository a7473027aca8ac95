"""Network namespaces without names, held open by a process of one thread: they go when it ends, however it ends.

Nothing is mounted and nothing has to be removed. Where we are not root, they belong to a user namespace of their own.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardp2p.errors import ConfigError

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_PR_SET_TIMERSLACK: Final = 29
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_TUN: Final = "/dev/net/tun"
_PACKAGES: Final = {
    "ip": "iproute2",
    "miniupnpd": "miniupnpd-nftables",
    "nft": "nftables",
    "nsenter": "util-linux",
}
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"

_libc = ctypes.CDLL(None, use_errno=True)


def find_program(name: str) -> str:
    """Where a program is that administrators use, also when the user's PATH leaves such out. Raises: ConfigError."""
    path = shutil.which(name) or shutil.which(name, path=_SYSTEM_PATH)
    if path is None:
        package = {"ip": "iproute2", "nsenter": "util-linux", "nft": "nftables", "miniupnpd": "miniupnpd-nftables"}.get(
            name, name
        )
        raise ConfigError(f"the lab needs the program {name}; install the package {package}")
    return path


def gain_rights() -> bool:
    """Become able to make network namespaces; says whether it took a user namespace. The process must have one thread.

    Raises: ConfigError with the reason why this machine does not allow it.
    """
    if os.geteuid() == 0 and _may_make_namespaces():
        return False
    user, group = os.geteuid(), os.getegid()
    try:
        _unshare(_CLONE_NEWUSER)
    except OSError as error:
        raise ConfigError(
            f"the lab needs root, or user namespaces, which this machine refuses ({error.strerror}); run it as root, "
            "or see sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces and "
            "kernel.apparmor_restrict_unprivileged_userns"
        ) from None
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError as error:
        raise ConfigError(
            f"the lab may not be root in a user namespace here ({error.strerror}); run it as root"
        ) from None
    return True


def enter_new_namespace() -> int:
    """Move into a network namespace of our own, new; gives a descriptor of it. Raises: ConfigError."""
    try:
        _unshare(_CLONE_NEWNET)
    except OSError as error:
        raise ConfigError(f"the lab may make no network namespaces here ({error.strerror}); run it as root") from None
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter(namespace: int) -> None:
    """Move into a namespace that we hold."""
    _check(_libc.setns(namespace, _CLONE_NEWNET))


def open_tun(device: str) -> int:
    """A TUN device in the namespace that we are in; its descriptor does not block. Raises: ConfigError."""
    try:
        descriptor = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        hint = "run it as root, or let this user open that device"
        if error.errno == errno.ENOENT:
            hint = "load the kernel's module tun, or give the container that device"
        raise ConfigError(f"the lab cannot use {_TUN} ({error.strerror}); {hint}") from None
    return descriptor


def run_ip(lines: Sequence[str]) -> None:
    """Let `ip` carry out these lines in the namespace that we are in. Raises: ConfigError with what it says."""
    script = "".join(line + "\n" for line in lines)
    done = subprocess.run(
        [find_program("ip"), "-batch", "-"], input=script, text=True, capture_output=True, check=False
    )
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise ConfigError(f"ip could not set up a network namespace: {said}; is this kernel's networking complete?")


def let_router_forward() -> None:
    """Let the kernel forward packets in the namespace that we are in."""
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def forget_connections() -> None:
    """Let the kernel forget what it tracks in the namespace that we are in."""
    # nfnetlink: delete connections (a message of subsystem 1, number 2), of no tuple, so all of them.
    message = struct.pack("=IHHIIBBH", 20, 0x0102, 0x0001, 1, 0, socket.AF_UNSPEC, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as connection:
        connection.send(message)


def wake_punctually() -> None:
    """Let timeouts of this process end when they are due, not 50 µs later, and let it run before others if it may."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return  # as punctual as the others are


def _may_make_namespaces() -> bool:
    """Whether this root has its rights here: in many containers it does not."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _unshare(_CLONE_NEWNET)
        enter(home)
    except PermissionError:
        return False
    finally:
        os.close(home)
    return True


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags))


def _check(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
