"""The numbers of system calls are those of libseccomp, on both architectures."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest

from stridebench.tasks.metrics import sandbox_calls

TABLES = (sandbox_calls.REFUSED, sandbox_calls.MODES, sandbox_calls.TIMES, sandbox_calls.OTHER)
UNIFIED = 424  # later calls have one number on all architectures
NEWER_THAN_LIBSECCOMP = {"fchmodat2", "statmount", "listmount"}


@pytest.fixture(scope="module")
def libseccomp() -> ctypes.CDLL:
    name = ctypes.util.find_library("seccomp")
    if name is None:
        pytest.skip("libseccomp is not installed")
    return ctypes.CDLL(name)


@pytest.fixture(params=sandbox_calls.AUDIT)
def machine(request) -> str:
    return request.param


def numbers(machine: str) -> dict[str, int]:
    """Return the numbers of all tables."""
    return {name: number for table in TABLES for name, number in sandbox_calls.numbers(table, machine).items()}


def names() -> set[str]:
    """Return the calls of all tables."""
    return {entry.split()[0] for table in TABLES for entry in table.replace("\n", " ").split(",")}


def test_every_number_is_that_of_libseccomp(libseccomp, machine):
    audit = ctypes.c_uint32(sandbox_calls.AUDIT[machine])
    known = {name: libseccomp.seccomp_syscall_resolve_name_arch(audit, name.encode()) for name in names()}
    unknown = {name for name, number in known.items() if number == -1}
    assert unknown <= NEWER_THAN_LIBSECCOMP
    assert numbers(machine).items() - {(name, numbers(machine)[name]) for name in unknown} == {
        (name, number) for name, number in known.items() if number >= 0
    }


def test_a_late_call_has_one_number_on_all_architectures():
    late = {name: number for name, number in numbers("x86_64").items() if number >= UNIFIED}
    assert late and late.items() <= numbers("aarch64").items()
    assert late.keys() >= NEWER_THAN_LIBSECCOMP


def test_no_number_stands_twice(machine):
    assert len(set(numbers(machine).values())) == len(numbers(machine))


def test_the_rules_of_another_architecture_use_its_numbers(monkeypatch, machine):
    monkeypatch.setattr(sandbox_calls.platform, "machine", lambda: machine)
    rules = sandbox_calls.filter_rules()
    assert rules is not None and rules["audit"] == sandbox_calls.AUDIT[machine]
    refused = {
        row[0] for group in ("always", "shared_processes", "shared_modes", "shared_times") for row in rules[group]
    }
    assert refused == set(numbers(machine).values())
