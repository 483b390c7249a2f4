"""Several models side by side: raw, cured, pruned; what changed and at what cost?"""

from clearvit.rooms import callable_room

callable_room(__name__, "clearvit.compare.compare:compare")
