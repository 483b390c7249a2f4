"""A model for other programs, each time compared with the original."""

from clearvit.rooms import callable_room

callable_room(__name__, "clearvit.export.export:export")
