"""What are frozen tokens worth? Tasks of several rooms, any number of backbones, one table."""

from clearvit.rooms import callable_room

callable_room(__name__, "clearvit.evaluate.evaluate:evaluate")
