"""Serving the microscope under load."""

from __future__ import annotations

from evidence import read_result


def page() -> str:
    found = read_result("serve")
    size = found.get("size", 224)
    answers = "\n".join(
        f"| {kind} | {count} |" for kind, count in found["answers"].items() if count
    )
    memory = ", ".join(f"{value:.0f}" for value in found["megabytes"])
    alone, beside = found["seconds, one image alone"], found["seconds, one image beside 24"]
    return f"""# Serving the microscope under load

The demo model at {size} px, one thread, load of the machine {found["load"]:.1f}, {found["date"]}.
Reproduce: `{found["command"]}`

| request and status of the answer | times |
|---|---|
{answers}

All the while two clients were connected and silent, and one sent half of what it promised.
"outside" are paths with "..". A look took {found["median seconds of a look"]:.1f} s, median, with
the others at work.

Resident memory of the server in MB, after every 20 requests and at the end: {memory}.

A second user: one image alone takes {alone:.1f} s; beside a user whose page of 24 images takes
{found["seconds of the page of 24"]:.1f} s, it takes {beside:.1f} s (medians). Batches of both are
interleaved.
"""
