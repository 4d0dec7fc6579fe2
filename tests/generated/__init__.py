"""Programs made from the fixtures and examples by hiding one thing, and what may come of them.

``python -m tests.generated --count 5000 --seed 1`` makes and migrates so many; what is hidden must
be found nevertheless, or be said to be out of sight. In CI a sample does.
"""
