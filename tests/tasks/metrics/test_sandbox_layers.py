"""The layers around a sandboxed program: what is shown, bubblewrap's command line, control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stridebench.tasks.metrics import sandbox, sandbox_layers
from stridebench.tasks.metrics.sandbox import Limits, run
from stridebench.tasks.metrics.sandbox_layers import ControlGroup, control_group, delegated

GROUPS = next(
    (
        path
        for path in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
        if (path / "cgroup.controllers").exists()
    ),
    None,
)


class TestReadable:
    def test_no_folder_lies_below_another(self):
        folders = sandbox_layers.readable()
        assert not [(a, b) for a in folders for b in folders if a.startswith(f"{b}/")]
        assert any(os.__file__.startswith(f"{folder}/") for folder in folders)

    def test_an_interpreter_in_the_root_folder_does_not_show_everything(self, monkeypatch):
        monkeypatch.setattr(sys, "base_prefix", "/")
        assert "/" not in sandbox_layers.readable()
        assert any(os.path.dirname(os.__file__).startswith(folder) for folder in sandbox_layers.readable())


class TestBubblewrap:
    def words(self) -> list[str]:
        return sandbox_layers.wrapped("bwrap", ["/usr/bin/python3", "-S", "/tmp/child.py"], Path("/tmp/child.py"), 64)

    def test_its_command_line(self, monkeypatch):
        """As documented in bwrap(1) of version 0.8: new namespaces, nothing but the named paths, /tmp of 64 MiB."""
        monkeypatch.setattr(sandbox_layers, "readable", lambda: ["/usr", "/lib64"])
        monkeypatch.setattr(sandbox_layers, "devices", lambda: ["/dev/null"])
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert " ".join(self.words()) == (
            "bwrap --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try --unshare-user-try "
            "--ro-bind /usr /usr --ro-bind /lib64 /lib64 --ro-bind /usr/bin/python3 /usr/bin/python3 "
            "--ro-bind /tmp/child.py /stride-child.py --dev-bind /dev/null /dev/null --proc /proc "
            "--size 67108864 --tmpfs /tmp --chdir /tmp --remount-ro / --die-with-parent --as-pid-1 "
            "-- /usr/bin/python3 -S /stride-child.py"
        )

    def test_root_keeps_its_rights_until_the_child_drops_them(self, monkeypatch):
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert self.words()[6:8] == ["--cap-add", "ALL"] and "--unshare-user-try" not in self.words()

    @pytest.mark.parametrize("script", ["exit 1", "sleep 60"])
    def test_one_that_does_not_work_here_is_not_used(self, tmp_path, monkeypatch, script):
        (tmp_path / "bwrap").write_text(
            f"#!/bin/sh\nexec {script}\n" if "sleep" in script else f"#!/bin/sh\n{script}\n"
        )
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(sandbox_layers, "TRIAL_S", 0.2)
        assert sandbox_layers.bubblewrap() is None
        assert not run("pass").isolation.bubblewrap

    def test_it_is_used_where_it_works(self, tmp_path, monkeypatch):
        """A stand-in records its words and runs the command behind them."""
        record = tmp_path / "words"
        (tmp_path / "bwrap").write_text(
            f'#!/bin/sh\necho "$*" > {record}\nwhile [ "$1" != -- ]; do shift; done\nshift\n'
            f'eval "set -- $(echo "$@" | sed "s|{sandbox_layers.SCRIPT}|{sandbox.CHILD}|")"\nexec "$@"\n'
        )
        (tmp_path / "bwrap").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        assert run("pass").isolation.bubblewrap
        assert f"--ro-bind {sandbox.CHILD} {sandbox_layers.SCRIPT}" in record.read_text()
        assert not run("pass", limits=Limits(namespaces=False)).isolation.bubblewrap


def tree(folder: Path, controllers: str, *names: str) -> Path:
    """Write the files of control groups, of which the last one delegates these controllers."""
    group = folder.joinpath(*names)
    group.mkdir(parents=True)
    (folder / "cgroup.controllers").write_text("memory pids\n")
    for path in (folder, group):
        (path / "cgroup.subtree_control").write_text("")
        (path / "cgroup.procs").write_text("")
    (group / "cgroup.subtree_control").write_text(controllers)
    return group


class TestDelegation:
    @pytest.fixture
    def membership(self, tmp_path):
        path = tmp_path / "membership"
        path.write_text("1:name=systemd:/\n0::/user/scope\n")
        return path

    def test_the_group_of_this_process(self, tmp_path, membership):
        group = tree(tmp_path / "groups", "cpu memory pids\n", "user", "scope")
        assert delegated(tmp_path / "groups", membership) == group

    def test_the_group_above(self, tmp_path, membership):
        group = tree(tmp_path / "groups", "memory pids\n", "user")
        assert delegated(tmp_path / "groups", membership) == group

    def test_a_machine_with_both_versions(self, tmp_path, membership):
        group = tree(tmp_path / "groups" / "unified", "memory pids\n", "user")
        assert delegated(tmp_path / "groups", membership) == group

    @pytest.mark.parametrize("controllers", ["", "memory\n", "pids cpu\n"])
    def test_without_both_controllers_there_is_none(self, tmp_path, membership, controllers):
        tree(tmp_path / "groups", controllers, "user", "scope")
        assert delegated(tmp_path / "groups", membership) is None

    @pytest.mark.parametrize("text", ["", "4:memory:/\n", "0::/../outside\n"])
    def test_a_group_that_is_not_visible_is_none(self, tmp_path, membership, text):
        tree(tmp_path / "groups", "memory pids\n", "user", "scope")
        membership.write_text(text)
        assert delegated(tmp_path / "groups", membership) is None

    def test_version_1_alone_is_none(self, tmp_path, membership):
        (tmp_path / "groups" / "memory").mkdir(parents=True)
        assert delegated(tmp_path / "groups", membership) is None
        assert delegated(tmp_path / "groups", tmp_path / "missing") is None

    def test_what_this_user_may_not_write_is_none(self, tmp_path, membership, monkeypatch):
        tree(tmp_path / "groups", "memory pids\n", "user", "scope")
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        assert delegated(tmp_path / "groups", membership) is None


class TestControlGroup:
    def test_its_limits(self, tmp_path):
        (tmp_path / "memory.swap.max").touch()
        ControlGroup(tmp_path).limit(1088, 32)
        written = {path.name: path.read_text() for path in tmp_path.iterdir()}
        limits = {"memory.max": str(1088 << 20), "memory.swap.max": "0", "memory.oom.group": "1", "pids.max": "32"}
        assert written == limits

    @pytest.mark.parametrize(
        ("events", "ended"), [("oom 3\noom_kill 1\n", True), ("oom 0\noom_kill 0\n", False), (None, False)]
    )
    def test_the_kernels_count_of_kills_is_read(self, tmp_path, events, ended):
        if events:
            (tmp_path / "memory.events").write_text(events)
        assert ControlGroup(tmp_path).out_of_memory() is ended

    def test_without_delegation_there_is_none(self):
        with control_group(None, 64, 8) as group:
            assert group is None

    def test_a_kernel_that_refuses_a_limit_has_none(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise PermissionError

        monkeypatch.setattr(ControlGroup, "limit", refuse)
        with control_group(tmp_path, 64, 8) as group:
            assert group is None
        assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(GROUPS is None or not os.access(GROUPS, os.W_OK), reason="no control group (version 2) is writable")
class TestRealControlGroup:
    def test_its_end_kills_what_is_in_it(self):
        group = ControlGroup(GROUPS / f"stride-test-{os.getpid()}")
        group.folder.mkdir()
        with subprocess.Popen(["sleep", "60"]) as process:
            (group.folder / "cgroup.procs").write_text(str(process.pid))
            group.end()
            assert process.wait(10) == -9
        assert not group.folder.exists()

    def test_a_program_is_in_it_with_all_it_starts(self, monkeypatch):
        """Without the limits, which need controllers that this kernel may give to version 1."""
        members = []
        terminate = subprocess.Popen.terminate

        def counted(process):
            members.extend(next(GROUPS.glob("stride-sandbox-*/cgroup.procs")).read_text().split())
            terminate(process)

        monkeypatch.setattr(sandbox, "bubblewrap", lambda: None)  # it would have ended them before
        monkeypatch.setattr(subprocess.Popen, "terminate", counted)
        monkeypatch.setattr(ControlGroup, "limit", lambda *_: None)
        monkeypatch.setattr(sandbox, "delegated", lambda: GROUPS)
        outcome = run("import os\nif os.fork() == 0:\n    import time; time.sleep(30)")
        assert outcome.isolation.group and len(members) >= 1
        assert list(GROUPS.glob("stride-sandbox-*")) == []


@pytest.mark.skipif(delegated() is None, reason="no control group with memory and pids is delegated here")
class TestDelegatedGroup:
    """What the kernel itself limits, while nothing is measured from outside."""

    @pytest.fixture(autouse=True)
    def unmeasured(self, monkeypatch):
        monkeypatch.setattr(sandbox, "measurable", lambda: False)

    def test_a_program_above_its_memory_is_ended(self):
        program = (
            "import os\nfor _ in range(3):\n    os.fork()\nkept = bytearray(b'x') * (50 << 20)\n"
            "import time; time.sleep(5)"
        )
        outcome = run(program, limits=Limits(memory_mb=100, disk_mb=1))
        assert outcome.isolation.group and outcome.reason == "memory", outcome

    @pytest.mark.parametrize("namespaces", [True, False])
    def test_processes_that_left_the_program_behind_count_too(self, namespaces):
        """Fifteen sessions take 8 MiB each, of which none is above a limit of one process."""
        program = (
            "import os, time\nfor _ in range(15):\n    if os.fork() == 0:\n        os.setsid()\n"
            "        kept = bytearray(b'x') * (8 << 20)\n        time.sleep(20)\ntime.sleep(20)"
        )
        outcome = run(program, limits=Limits(timeout_s=15, memory_mb=100, disk_mb=1, namespaces=namespaces))
        assert outcome.isolation.group and outcome.reason == "memory", outcome

    def test_processes_are_limited(self):
        program = (
            "import os, time\nstarted = 0\ntry:\n    for _ in range(100):\n        if os.fork() == 0:\n"
            "            time.sleep(20)\n        started += 1\nexcept OSError:\n    pass\n"
            "assert started == 7, started"
        )
        outcome = run(program, limits=Limits(processes=8))
        assert outcome.isolation.group and outcome.passed, outcome
        assert not list(delegated().glob("stride-sandbox-*"))

    def test_nothing_is_missing_where_bubblewrap_and_namespaces_are(self):
        missing = run("pass").isolation.missing()
        assert sandbox.MISSING["group"] not in missing
