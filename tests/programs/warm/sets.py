"""A module that changes the environment when it is imported."""

import os

os.environ["ADDED"] = "by the import"
os.environ.setdefault("OF_RANK", "by the import")
os.environ.setdefault("BY_DEFAULT", "by the import")
os.environ["CHANGED"] = os.environ["CHANGED"] + " and by the import"
del os.environ["REMOVED"]
