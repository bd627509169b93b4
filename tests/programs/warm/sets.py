"""A module that changes the environment and the path of modules when it is imported."""

import os
import sys

sys.path.append("/nowhere/appended")

os.environ["ADDED"] = "by the import"
os.environ.setdefault("OF_RANK", "by the import")
os.environ.setdefault("BY_DEFAULT", "by the import")
os.environ["CHANGED"] = os.environ["CHANGED"] + " and by the import"
del os.environ["REMOVED"]
