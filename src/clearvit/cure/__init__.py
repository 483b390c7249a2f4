"""Clean tokens without labels: views of a picture, and their average."""

from clearvit.rooms import callable_room

callable_room(__name__, "clearvit.cure.cure:cure")
