"""What tests of several folders use.

``migrating`` runs the engine on sources given as text; ``commandline`` runs a command in this
process, ``terminal`` at a terminal that a test types at. ``accounting`` counts the references to
FSDP1 by other means than the tool's, ``binding`` finds names that are read before they are bound,
and ``standins`` runs a program whose imports are all stand-ins.
"""
