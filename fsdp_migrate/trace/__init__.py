"""Where values go, over a whole project, without running anything.

``project``: the modules and how their imports meet. ``roots``: which directories dotted names start
from. ``flow``: which definitions reach a use inside
one scope. ``values``: what an expression may be, across files. ``models``: which FSDP1 model a
receiver is.
"""
