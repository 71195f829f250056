"""engine.memory.allocator: glibc is told to keep freed memory, unless the user has settings of their own."""

import platform

import pytest

from engine.memory import allocator


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_glibc_accepts_the_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert allocator.give_freed_memory_back()
    assert allocator.keep_freed_memory()


def test_the_users_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert not allocator.keep_freed_memory()
    assert not allocator.give_freed_memory_back()
