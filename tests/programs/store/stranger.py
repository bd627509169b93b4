"""Another user of the machine cannot use the store."""

import os

from light import Light

own = Light()
assert own.ping()
child = os.fork()
if child == 0:
    os.setuid(65534)
    try:
        answered = Light().ping()
    except (EOFError, ConnectionError):
        answered = False
    os._exit(answered)
print("turned away" if os.waitpid(child, 0)[1] == 0 else "served")
