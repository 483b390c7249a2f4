"""Does my ViT have artifact tokens: which, where, since which block?"""

from clearvit.rooms import callable_room

callable_room(__name__, "clearvit.diagnose.diagnosis:diagnose")
