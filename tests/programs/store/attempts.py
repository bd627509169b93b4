"""What an attempt leaves in the store is not seen by the next one."""

import os

from light import Light

attempt = int(os.environ["RANKRUN_ATTEMPT"])
store = Light()
assert store.num_keys() == 0, "left by the attempt before"
store.set(b"/attempt %d" % attempt, b"")
with open("ports", "a") as ports:
    print(os.environ["MASTER_PORT"], file=ports)
if attempt < 3:
    # More than the agent takes at once, with something to read in each.
    left = [Light(bytes([0, 0xCE, 0xF7, 0x85, 0x3C, 1]) + bytes(16)) for _ in range(200)]
    os._exit(3)
print("alone with", store.num_keys(), "key")
