"""How fast models are on this machine, side by side."""

from clearvit.rooms import callable_room

callable_room(__name__, "clearvit.bench.bench:bench")
