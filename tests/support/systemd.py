"""A systemd of its own: booted in namespaces, on a copy of this machine's files that is gone with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.support.waiting import wait_until

CGROUPS = Path("/sys/fs/cgroup")

BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs {base}
mkdir {base}/up {base}/work {base}/root
mount -t overlay overlay -o lowerdir=/,upperdir={base}/up,workdir={base}/work {base}/root
cd {base}/root
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
{cgroups}
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount --rbind /dev dev
mkdir -p opt/python
mount --bind {python} opt/python
cp -r {files}/. .
echo 0123456789abcdef0123456789abcdef > etc/machine-id
mkdir -p etc/systemd/system
cd etc/systemd/system
printf '[Unit]\\nRequires=basic.target dbus.socket\\nAfter=basic.target dbus.socket\\n' > rmq-test.target
for unit in udevd udev-trigger modules-load sysctl networkd resolved timesyncd; do
  ln -sf /dev/null systemd-$unit.service
done
cd {base}/root
mkdir mnt/old
pivot_root . mnt/old
umount -l mnt/old
mount --make-rshared /
exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin {init} --system --unit=rmq-test.target
"""
INIT = "/lib/systemd/systemd"
V2 = "mount -t cgroup2 cgroup2 sys/fs/cgroup"
HYBRID = """mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
mount -t cgroup2 cgroup2 sys/fs/cgroup/unified"""

NEEDED = [INIT, *filter(None, map(shutil.which, ("systemctl", "unshare", "nsenter", "dbus-daemon")))]
POSSIBLE = os.geteuid() == 0 and len(NEEDED) == 5 and Path(INIT).exists() and CGROUPS.exists()
"""Whether a systemd can be booted here."""


class Systemd:
    """A booted systemd."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def run(self, *command: str, code: int | None = 0) -> str:
        """Run a command under it, and return what it prints; `code` is its exit code, `None` for any."""
        entered = ["nsenter", f"--target={self._pid}", *"--pid --mount --uts --ipc --cgroup --root --wd".split()]
        ran = subprocess.run([*entered, *command], capture_output=True, text=True, timeout=120)
        assert code in (None, ran.returncode), ran.stdout + ran.stderr
        return ran.stdout.strip()

    def show(self, unit: str, name: str) -> str:
        """Return a property of a unit."""
        return self.run("systemctl", "show", unit, f"--property={name}", "--value")


@contextmanager
def booted(folder: Path) -> Iterator[Systemd]:
    """Boot a systemd in a folder. The folder's `files` are added to its root; this Python is /opt/python there."""
    base, groups = folder / "base", []
    base.mkdir()
    v2 = (CGROUPS / "cgroup.controllers").exists()
    for tree in [CGROUPS] if v2 else [CGROUPS / "systemd", CGROUPS / "unified"]:
        groups.append(tree / f"rmq-test-{os.getpid()}")
        groups[-1].mkdir()
    script = BOOT.format(
        base=base, files=folder / "files", cgroups=V2 if v2 else HYBRID, init=INIT, python=sys.base_prefix
    )
    join = "".join(f"echo $$ > {group}/cgroup.procs\n" for group in groups)
    unshare = 'exec unshare --pid --mount --uts --ipc --cgroup --fork --kill-child sh -c "$0"'
    with subprocess.Popen(["sh", "-c", join + unshare, script], stdin=subprocess.DEVNULL) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            wait_until(lambda: children.read_text().split(), 60)
            systemd = Systemd(int(children.read_text()))
            wait_until(lambda: systemd.run("systemctl", "is-system-running", code=None) == "running", 120)
            yield systemd
        finally:
            process.kill()
            process.wait()
            for group in groups:
                wait_until(partial(_removed, group), 30)


def _removed(group: Path) -> bool:
    """Remove a control group and those below; return whether it worked, which takes until its processes are gone."""
    with suppress(OSError):
        for path, _, _ in os.walk(group, topdown=False):
            os.rmdir(path)
    return not group.exists()
