"""Limits that the shell sets for a process, in words; imports nothing heavy, since what is heavy may not fit."""

from __future__ import annotations

#: Of address space, below which PyTorch and what it loads may fail in any way: they map far more than they use.
ROOMY = 64 << 30


def memory_hint() -> str:
    """What to say of an address space that is limited; "" where it is not, or so wide that it is not the cause."""
    try:
        import resource
    except ImportError:
        return ""
    kinds = ((resource.RLIMIT_AS, "ulimit -v"), (resource.RLIMIT_DATA, "ulimit -d"))
    found = [(resource.getrlimit(kind)[0], name) for kind, name in kinds]
    tight = [(limit, name) for limit, name in found if limit != resource.RLIM_INFINITY and limit < ROOMY]
    if not tight:
        return ""
    limit, name = min(tight)
    text = f"{name} allows {limit / 2**30:.3g} GiB of memory, which is too little for PyTorch here"
    return f"{text}; raise it, or take it away: {name} unlimited"
